//! What crosses the boundary: results, pointers of callers, and the shape of an exported function.
//!
//! The pointers that callers hand over are the one thing here nobody can check. They are wrapped
//! in types that refuse null and do the reading and writing, so that the functions behind them
//! are ordinary safe Rust.

use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A `CUresult` other than success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

/// What a function of the API comes to.
pub(crate) type Answer<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($name:ident = $value:literal),* $(,)?) => { $(pub(crate) const $name: Code = Code($value);)* };
}

impl Code {
    codes! {
        INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100,
        INVALID_DEVICE = 101, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
        ECC_UNCORRECTABLE = 214, UNSUPPORTED_LIMIT = 215, PEER_ACCESS_UNSUPPORTED = 217, DEVICE_UNAVAILABLE = 46,
        FILE_NOT_FOUND = 301, OPERATING_SYSTEM = 304, INVALID_HANDLE = 400, ILLEGAL_STATE = 401,
        NOT_FOUND = 500, NOT_READY = 600, PEER_ACCESS_ALREADY_ENABLED = 704,
        PEER_ACCESS_NOT_ENABLED = 705, CONTEXT_IS_DESTROYED = 709,
        HOST_MEMORY_ALREADY_REGISTERED = 712, HOST_MEMORY_NOT_REGISTERED = 713, NOT_PERMITTED = 800,
        LAUNCH_FAILED = 719, COOPERATIVE_LAUNCH_TOO_LARGE = 720, NOT_SUPPORTED = 801,
        SYSTEM_DRIVER_MISMATCH = 803, STREAM_CAPTURE_UNSUPPORTED = 900,
        STREAM_CAPTURE_INVALIDATED = 901, STREAM_CAPTURE_MERGE = 902,
        STREAM_CAPTURE_UNMATCHED = 903, STREAM_CAPTURE_UNJOINED = 904,
        STREAM_CAPTURE_ISOLATION = 905, STREAM_CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907,
        GRAPH_EXEC_UPDATE_FAILURE = 910,
        INVALID_RESOURCE_TYPE = 914, INVALID_RESOURCE_CONFIGURATION = 915, UNKNOWN = 999,
    }
}

/// Runs the body of an exported function.
///
/// The bodies hold no code that panics on what a caller sends. Should one do so after all, the
/// caller's process must not be unwound into: it gets `CUDA_ERROR_UNKNOWN`.
pub(crate) fn entry(body: impl FnOnce() -> Answer) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Where a caller wants a value.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Refuses null, before anything is done that would have to be undone.
    pub(crate) fn check(self) -> Answer {
        if self.0.is_null() { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    pub(crate) fn put(self, value: T) -> Answer {
        self.check()?;
        self.put_if(value);
        Ok(())
    }

    /// For values a caller may leave out.
    pub(crate) fn put_if(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, and the API's contract makes it point to room for a T.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Writes the first `room` of `values`.
    pub(crate) fn put_all(self, values: impl IntoIterator<Item = T>, room: usize) -> Answer {
        for (index, value) in values.into_iter().take(room).enumerate() {
            self.check()?;
            // SAFETY: the caller gave room for `room` values, and `index` is below it.
            unsafe { self.0.add(index).write_unaligned(value) }
        }
        Ok(())
    }

    /// The value there now, for structs that are read and written.
    pub(crate) fn get(self) -> Answer<T>
    where
        T: Copy,
    {
        self.check()?;
        // SAFETY: not null, and the API's contract makes it point to a T.
        Ok(unsafe { self.0.read_unaligned() })
    }
}

/// A value, or several in a row, that a caller points to.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn get(self) -> Answer<T> {
        self.at(0)
    }

    /// The value at `index` of an array.
    pub(crate) fn at(self, index: usize) -> Answer<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the API's contract makes it point to enough values.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    pub(crate) fn all(self, count: usize) -> Answer<Vec<T>> {
        (0..count).map(|index| self.at(index)).collect()
    }

    pub(crate) fn address(self) -> *const T {
        self.0
    }
}

/// A C string of a caller.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the API's contract makes it a C string.
        Ok(unsafe { CStr::from_ptr(self.0) }.to_string_lossy().into_owned())
    }
}

/// Writes `text` and its final zero into `room` bytes, cut off where it must be.
pub(crate) fn put_text(at: Out<c_char>, room: i32, text: &str) -> Answer {
    let room = usize::try_from(room).ok().filter(|room| *room > 0).ok_or(Code::INVALID_VALUE)?;
    let bytes = text.bytes().map(u8::cast_signed).take(room - 1).chain([0]);
    at.put_all(bytes, room)
}

/// An address that is only handed on.
pub(crate) type Opaque = *mut c_void;

/// Which stream the handle 0 means: that depends on the name the caller used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    Legacy,
    PerThread,
}

/// Declares exported functions; several names share one body.
///
/// After a `|` come the names under which the handle 0 is the calling thread's own stream; then
/// the first argument is the [`Lane`].
macro_rules! api {
    () => {};
    (fn $($name:ident),+ | $($own:ident),+ ($lane:ident $(, $arg:ident : $ty:ty)* $(,)?) $body:block $($rest:tt)*) => {
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "as many as the API's function has")]
            fn answer($lane: $crate::abi::Lane $(, $arg: $ty)*) -> $crate::abi::Answer $body
            $crate::abi::api!{@lane Legacy [$($name)+] ($($arg: $ty),*)}
            $crate::abi::api!{@lane PerThread [$($own)+] ($($arg: $ty),*)}
        };
        $crate::abi::api!{$($rest)*}
    };
    (fn $($name:ident),+ ($($arg:ident : $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        const _: () = {
            #[allow(clippy::too_many_arguments, reason = "as many as the API's function has")]
            fn answer($($arg: $ty),*) -> $crate::abi::Answer $body
            $crate::abi::api!{@plain [$($name)+] ($($arg: $ty),*)}
        };
        $crate::abi::api!{$($rest)*}
    };
    (@lane $lane:ident [$($name:ident)+] $args:tt) => { $($crate::abi::api!{@one $lane $name $args})+ };
    (@one $lane:ident $name:ident ($($arg:ident : $ty:ty),*)) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::abi::entry(|| answer($crate::abi::Lane::$lane $(, $arg)*))
        }
    };
    (@plain [$($name:ident)+] $args:tt) => { $($crate::abi::api!{@only $name $args})+ };
    (@only $name:ident ($($arg:ident : $ty:ty),*)) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::abi::entry(|| answer($($arg),*))
        }
    };
}

pub(crate) use api;

/// Wraps an address that came inside a struct.
pub(crate) fn input<T>(address: *const T) -> In<T> {
    In(address)
}

/// Wraps an address that came inside a struct.
pub(crate) fn output<T>(address: *mut T) -> Out<T> {
    Out(address)
}
