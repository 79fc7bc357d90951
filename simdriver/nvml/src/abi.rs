//! What crosses the border to C.
//!
//! The caller's part of the contract is the same for every function: a pointer is null or points
//! at what its type says, writable if it is for an answer, and texts end with a zero. All unsafe
//! code of the library rests on that, and is here.

use std::ffi::{CStr, c_char};

/// What a call comes to, as NVML numbers it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

macro_rules! statuses {
    ($($name:ident = $number:literal $text:literal;)*) => {
        #[expect(dead_code, reason = "the list is the interface's, whether or not we answer it")]
        impl Status {
            $(pub(crate) const $name: Self = Self($number);)*
        }

        impl Status {
            /// What `nvmlErrorString` says of it.
            pub(crate) fn text(self) -> &'static CStr {
                match self.0 {
                    $($number => $text,)*
                    _ => c"Unknown Error",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = 0 c"Success";
    UNINITIALIZED = 1 c"Uninitialized";
    INVALID_ARGUMENT = 2 c"Invalid Argument";
    NOT_SUPPORTED = 3 c"Not Supported";
    NO_PERMISSION = 4 c"Insufficient Permissions";
    ALREADY_INITIALIZED = 5 c"Already Initialized";
    NOT_FOUND = 6 c"Not Found";
    INSUFFICIENT_SIZE = 7 c"Insufficient Size";
    INSUFFICIENT_POWER = 8 c"Insufficient External Power";
    DRIVER_NOT_LOADED = 9 c"Driver Not Loaded";
    TIMEOUT = 10 c"Timeout";
    IRQ_ISSUE = 11 c"Interrupt Request Issue";
    LIBRARY_NOT_FOUND = 12 c"NVML Shared Library Not Found";
    FUNCTION_NOT_FOUND = 13 c"Function Not Found";
    CORRUPTED_INFOROM = 14 c"Corrupted infoROM";
    GPU_IS_LOST = 15 c"GPU is lost";
    RESET_REQUIRED = 16 c"GPU requires reset";
    OPERATING_SYSTEM = 17 c"GPU access blocked by the operating system";
    LIB_RM_VERSION_MISMATCH = 18 c"Driver/library version mismatch";
    IN_USE = 19 c"In use by another client";
    MEMORY = 20 c"Insufficient Memory";
    NO_DATA = 21 c"No data";
    VGPU_ECC_NOT_SUPPORTED = 22 c"The requested vgpu operation is not available on target device, because ECC is enabled";
    INSUFFICIENT_RESOURCES = 23 c"Insufficient Resources";
    FREQ_NOT_SUPPORTED = 24 c"Requested frequency not supported";
    ARGUMENT_VERSION_MISMATCH = 25 c"Argument version mismatch";
    DEPRECATED = 26 c"The requested functionality has been deprecated";
    NOT_READY = 27 c"The system is not ready for the request";
    GPU_NOT_FOUND = 28 c"No GPUs were found";
    INVALID_STATE = 29 c"Resource not in correct state to perform requested operation";
}

/// What a call comes to, inside.
pub(crate) type Answer<T = ()> = Result<T, Status>;

/// A pointer to one or more `T` that the caller gave, or null.
#[repr(transparent)]
pub(crate) struct Pointer<T>(*mut T);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

impl<T> From<*mut T> for Pointer<T> {
    fn from(pointer: *mut T) -> Self {
        Self(pointer)
    }
}

impl<T: Copy> Pointer<T> {
    /// The same, where a version says that another struct stands there.
    pub(crate) fn cast<U>(self) -> Pointer<U> {
        Pointer(self.0.cast())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Reads what it points at.
    pub(crate) fn get(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the contract it points at a `T`.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// Writes an answer.
    pub(crate) fn put(self, value: T) -> Answer {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the contract it points at a `T` that may be written.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes into an array that the caller says has room for `room`.
    pub(crate) fn put_all(self, values: &[T], room: usize) -> Answer {
        if values.len() > room {
            return Err(Status::INSUFFICIENT_SIZE);
        }
        if self.0.is_null() && !values.is_empty() {
            return Err(Status::INVALID_ARGUMENT);
        }
        for (place, value) in values.iter().enumerate() {
            // SAFETY: within the room the caller says there is.
            unsafe { self.0.add(place).write_unaligned(*value) };
        }
        Ok(())
    }

    /// Calls `change` for each of an array's `count` values.
    pub(crate) fn change_all(self, count: usize, mut change: impl FnMut(&mut T)) -> Answer {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        for place in 0..count {
            // SAFETY: within the count the caller says there is, readable and writable.
            unsafe {
                let mut value = self.0.add(place).read_unaligned();
                change(&mut value);
                self.0.add(place).write_unaligned(value);
            }
        }
        Ok(())
    }

    /// Writes a list in the way of NVML: `count` says how much room there is and then how much
    /// there was to say; too little room writes nothing else.
    pub(crate) fn put_list(self, values: &[T], count: Pointer<u32>) -> Answer {
        let room = count.get()?;
        count.put(u32::try_from(values.len()).unwrap_or(u32::MAX))?;
        self.put_all(values, usize::try_from(room).unwrap_or(0))
    }
}

impl Pointer<c_char> {
    /// Reads a text.
    pub(crate) fn text(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the contract it points at a text that ends with a zero.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map(str::to_owned).map_err(|_| Status::INVALID_ARGUMENT)
    }

    /// Writes a text with its zero, if there is room for all of it.
    pub(crate) fn put_text(self, text: &str, room: u32) -> Answer {
        if self.0.is_null() {
            return Err(Status::INVALID_ARGUMENT);
        }
        let bytes: Vec<c_char> =
            text.bytes().chain([0]).map(|byte| c_char::from_ne_bytes([byte])).collect();
        self.put_all(&bytes, usize::try_from(room).unwrap_or(0))
    }
}

/// A text in a field of a struct.
pub(crate) fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    let bytes = text.bytes().take(N.saturating_sub(1));
    field.iter_mut().zip(bytes).for_each(|(to, byte)| *to = c_char::from_ne_bytes([byte]));
    field
}

/// An address that means something to us and nothing to the caller.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) usize);

/// The size-and-version word of a struct, `NVML_STRUCT_VERSION` in the header.
pub(crate) const fn struct_version<T>(version: u32) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "structs are small")]
    let size = size_of::<T>() as u32;
    size | version << 24
}
