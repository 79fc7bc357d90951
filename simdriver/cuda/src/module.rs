//! Modules and libraries: any image is taken, and has functions of every name.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};

use crate::abi::{Answer, Code, In, Opaque, Out, Text, api, input};
use crate::card::Memory;
use crate::launch::{self, Length};
use crate::memory::linear;
use crate::memory::pages::{self, BLOCK, Place};
use crate::process::{Call, Kind, Process, State, here, process};

/// An image that was loaded in a context.
pub(crate) struct Module {
    context: u64,
    card: usize,
    charged: u64,
    functions: HashMap<String, u64>,
    variables: HashMap<String, (u64, u64)>,
    /// The library it belongs to.
    library: Option<u64>,
}

/// A kernel; a `CUkernel` of a library is one too.
pub(crate) struct Function {
    c_name: CString,
    pub(crate) module: u64,
    pub(crate) library: Option<u64>,
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    /// How long it takes, if its name or the machine's description says so.
    pub(crate) length: Option<Length>,
    /// The most shared memory a launch may ask for.
    pub(crate) dynamic_shared: i32,
    carve_out: i32,
    cluster: [i32; 4],
}

/// An image that is loaded in every context that uses it.
pub(crate) struct Library {
    charge: u64,
    kernels: HashMap<String, u64>,
    modules: HashMap<u64, u64>,
}

/// Images that are joined to one.
#[derive(Default)]
pub(crate) struct Link {
    image: Vec<u8>,
}

/// The size of a variable whose image does not say.
const VARIABLE: u64 = 4096;

/// How long an image is: each kind says so in its own way.
fn length(image: *const c_void) -> Answer<u64> {
    if image.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let bytes: In<u8> = input(image.cast());
    let word = |at: usize, width: usize| -> Answer<u64> {
        (0..width)
            .rev()
            .try_fold(0_u64, |value, index| Ok(value << 8 | u64::from(bytes.at(at + index)?)))
    };
    let mut first = [0; 4];
    for (index, byte) in first.iter_mut().enumerate() {
        *byte = bytes.at(index)?;
        // A text shorter than four bytes.
        if *byte == 0 {
            return Ok(index as u64 + 1);
        }
    }
    match first {
        // ELF: the table of sections is at its end.
        [0x7f, b'E', b'L', b'F'] => {
            Ok(word(0x28, 8)?.saturating_add(word(0x3a, 2)? * word(0x3c, 2)?))
        }
        // A bundle: a header, and what it says follows.
        [0x50, 0xed, 0x55, 0xba] => Ok(word(6, 2)?.saturating_add(word(8, 8)?)),
        // The wrapper that compilers put around it.
        [0xb1, 0x43, 0x62, 0x46] => length(word(8, 8)? as *const c_void),
        // Text.
        _ => {
            // SAFETY: by the API's contract an image that is none of the above is a C string.
            Ok(unsafe { libc::strlen(image.cast()) } as u64 + 1)
        }
    }
}

/// What an image costs: code is kept in blocks.
fn cost(image: u64) -> Answer<u64> {
    pages::round_up(image.clamp(1, 1 << 40), BLOCK)
}

fn load(call: &Call, charged: u64, library: Option<u64>) -> Answer<u64> {
    call.process.joined.reserve(&call.process.cards[call.card], Memory::Module, charged)?;
    let mut state = call.state();
    let handle = state.handle(Kind::Module);
    let module = Module {
        context: call.context,
        card: call.card,
        charged,
        functions: HashMap::new(),
        variables: HashMap::new(),
        library,
    };
    state.modules.insert(handle, module);
    Ok(handle)
}

fn load_data(image: *const c_void) -> Answer<u64> {
    let call = here()?;
    load(&call, cost(length(image)?)?, None)
}

fn file_size(path: &str) -> Answer<u64> {
    Ok(std::fs::metadata(path).map_err(|_| Code::FILE_NOT_FOUND)?.len())
}

fn unload(process: &Process, state: &mut State, handle: u64) -> Answer {
    let module = state.modules.remove(&handle).ok_or(Code::INVALID_HANDLE)?;
    state.functions.retain(|_, function| function.module != handle || function.library.is_some());
    process.joined.release(&process.cards[module.card], Memory::Module, module.charged);
    Ok(())
}

/// Unloads what was loaded in a context that ends.
pub(crate) fn free_context(process: &Process, state: &mut State, context: u64) {
    let mine = state.modules.iter().filter(|(_, module)| module.context == context);
    let mine: Vec<u64> = mine.map(|(handle, _)| *handle).collect();
    for handle in mine {
        // It is there: it was just found.
        let _ = unload(process, state, handle);
    }
    for library in state.libraries.values_mut() {
        library.modules.remove(&context);
    }
}

fn new_function(state: &mut State, name: &str, module: u64, library: Option<u64>) -> Answer<u64> {
    let handle = state.handle(Kind::Function);
    let c_name = CString::new(name).map_err(|_| Code::INVALID_VALUE)?;
    let function = Function {
        length: launch::known(name)?,
        c_name,
        module,
        library,
        block: [1; 3],
        shared: 0,
        dynamic_shared: 48 << 10,
        carve_out: -1,
        cluster: [0; 4],
    };
    state.functions.insert(handle, function);
    Ok(handle)
}

/// The function of a name.
fn function(module: u64, name: String) -> Answer<u64> {
    let call = here()?;
    let mut state = call.state();
    let found = state.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
    if name.is_empty() {
        return Err(Code::NOT_FOUND);
    }
    if let Some(handle) = found.functions.get(&name) {
        return Ok(*handle);
    }
    let handle = new_function(&mut state, &name, module, None)?;
    if let Some(module) = state.modules.get_mut(&module) {
        module.functions.insert(name, handle);
    }
    Ok(handle)
}

/// The variable of a name.
fn variable(module: u64, name: String, place: Place) -> Answer<(u64, u64)> {
    let call = here()?;
    {
        let state = call.state();
        let found = state.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        if let Some(known) = found.variables.get(&name) {
            return Ok(*known);
        }
    }
    if name.is_empty() {
        return Err(Code::NOT_FOUND);
    }
    let address = linear::allocate(&call, VARIABLE, place)?;
    if let Some(module) = call.state().modules.get_mut(&module) {
        module.variables.insert(name, (address, VARIABLE));
    }
    Ok((address, VARIABLE))
}

fn load_library(charge: u64) -> Answer<u64> {
    let process = process()?;
    let mut state = process.state();
    let handle = state.handle(Kind::Library);
    let library = Library { charge, kernels: HashMap::new(), modules: HashMap::new() };
    state.libraries.insert(handle, library);
    Ok(handle)
}

/// The module of a library in the current context, loaded when first used.
fn module_of(call: &Call, library: u64) -> Answer<u64> {
    let charge = {
        let state = call.state();
        let found = state.libraries.get(&library).ok_or(Code::INVALID_HANDLE)?;
        if let Some(module) = found.modules.get(&call.context) {
            return Ok(*module);
        }
        found.charge
    };
    let module = load(call, charge, Some(library))?;
    if let Some(library) = call.state().libraries.get_mut(&library) {
        library.modules.insert(call.context, module);
    }
    Ok(module)
}

/// Works on a function.
fn with<T>(handle: u64, work: impl FnOnce(&mut Function) -> Answer<T>) -> Answer<T> {
    let process = process()?;
    let mut state = process.state();
    work(state.functions.get_mut(&handle).ok_or(Code::INVALID_HANDLE)?)
}

fn attribute(handle: u64, attribute: u32) -> Answer<i32> {
    let process = process()?;
    let (major, minor) = process.cards.first().map_or((8, 0), |card| card.facts.capability);
    let version = i32::try_from(major * 10 + minor).unwrap_or(80);
    with(handle, |function| {
        Ok(match attribute {
            0 => 1024,
            1..=3 | 7 | 10 | 15..=17 => 0,
            4 => 32,
            5 | 6 => version,
            8 => function.dynamic_shared,
            9 => function.carve_out,
            11..=14 => function.cluster[attribute as usize - 11],
            _ => return Err(Code::INVALID_VALUE),
        })
    })
}

fn set_attribute(handle: u64, attribute: u32, value: i32) -> Answer {
    with(handle, |function| {
        match attribute {
            8 if (0..=227 << 10).contains(&value) => function.dynamic_shared = value,
            9 if (-1..=100).contains(&value) => function.carve_out = value,
            11..=14 => function.cluster[attribute as usize - 11] = value,
            15 => {}
            _ => return Err(Code::INVALID_VALUE),
        }
        Ok(())
    })
}

/// Adds an image to those that are linked.
fn link_add(link: u64, image: &[u8]) -> Answer {
    let process = process()?;
    let mut state = process.state();
    state.links.get_mut(&link).ok_or(Code::INVALID_HANDLE)?.image.extend_from_slice(image);
    Ok(())
}

api! {
    fn cuModuleLoad(module: Out<u64>, path: Text) {
        module.check()?;
        let call = here()?;
        module.put(load(&call, cost(file_size(&path.get()?)?)?, None)?)
    }

    fn cuModuleLoadData(module: Out<u64>, image: *const c_void) {
        module.check()?;
        module.put(load_data(image)?)
    }

    fn cuModuleLoadDataEx(module: Out<u64>, image: *const c_void, count: u32, options: Opaque, values: Opaque) {
        let _ = (count, options, values);
        module.check()?;
        module.put(load_data(image)?)
    }

    fn cuModuleLoadFatBinary(module: Out<u64>, image: *const c_void) {
        module.check()?;
        module.put(load_data(image)?)
    }

    fn cuModuleUnload(module: u64) {
        let call = here()?;
        crate::context::drain(call.process, call.context)?;
        let variables: Vec<u64> = {
            let state = call.state();
            let found = state.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
            if found.library.is_some() { return Err(Code::NOT_PERMITTED); }
            found.variables.values().map(|(address, _)| *address).collect()
        };
        for address in variables {
            linear::free(address)?;
        }
        unload(call.process, &mut call.state(), module)
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) { process()?; mode.put(2) }

    fn cuModuleGetFunction(to: Out<u64>, module: u64, name: Text) {
        to.check()?;
        to.put(function(module, name.get()?)?)
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, module: u64) {
        let process = process()?;
        let state = process.state();
        let module = state.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        count.put(u32::try_from(module.functions.len()).unwrap_or(u32::MAX))
    }

    fn cuModuleEnumerateFunctions(functions: Out<u64>, count: u32, module: u64) {
        let process = process()?;
        let state = process.state();
        let module = state.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        functions.put_all(module.functions.values().copied(), count as usize)
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, size: Out<usize>, module: u64, name: Text) {
        let (at, length) = variable(module, name.get()?, Place::Anywhere)?;
        address.put_if(at);
        size.put_if(pages::size(length)?);
        Ok(())
    }

    fn cuModuleGetGlobal(address: Out<u32>, size: Out<u32>, module: u64, name: Text) {
        let (at, length) = variable(module, name.get()?, Place::Low)?;
        address.put_if(u32::try_from(at).map_err(|_| Code::NOT_FOUND)?);
        size.put_if(u32::try_from(length).map_err(|_| Code::NOT_FOUND)?);
        Ok(())
    }

    fn cuLibraryLoadData(
        library: Out<u64>, image: *const c_void, options: Opaque, values: Opaque, count: u32,
        library_options: Opaque, library_values: Opaque, library_count: u32,
    ) {
        let _ = (options, values, count, library_options, library_values, library_count);
        library.check()?;
        process()?;
        library.put(load_library(cost(length(image)?)?)?)
    }

    fn cuLibraryLoadFromFile(
        library: Out<u64>, path: Text, options: Opaque, values: Opaque, count: u32,
        library_options: Opaque, library_values: Opaque, library_count: u32,
    ) {
        let _ = (options, values, count, library_options, library_values, library_count);
        library.check()?;
        process()?;
        library.put(load_library(cost(file_size(&path.get()?)?)?)?)
    }

    fn cuLibraryUnload(library: u64) {
        let process = process()?;
        let mut state = process.state();
        let found = state.libraries.remove(&library).ok_or(Code::INVALID_HANDLE)?;
        for module in found.modules.values() {
            unload(process, &mut state, *module)?;
        }
        state.functions.retain(|_, function| function.library != Some(library));
        Ok(())
    }

    fn cuLibraryGetKernel(kernel: Out<u64>, library: u64, name: Text) {
        kernel.check()?;
        let process = process()?;
        let name = name.get()?;
        let mut state = process.state();
        let found = state.libraries.get(&library).ok_or(Code::INVALID_HANDLE)?;
        if name.is_empty() { return Err(Code::NOT_FOUND); }
        let handle = match found.kernels.get(&name) {
            Some(handle) => *handle,
            None => new_function(&mut state, &name, 0, Some(library))?,
        };
        if let Some(library) = state.libraries.get_mut(&library) {
            library.kernels.insert(name, handle);
        }
        kernel.put(handle)
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: u64) {
        let process = process()?;
        let state = process.state();
        let library = state.libraries.get(&library).ok_or(Code::INVALID_HANDLE)?;
        count.put(u32::try_from(library.kernels.len()).unwrap_or(u32::MAX))
    }

    fn cuLibraryEnumerateKernels(kernels: Out<u64>, count: u32, library: u64) {
        let process = process()?;
        let state = process.state();
        let library = state.libraries.get(&library).ok_or(Code::INVALID_HANDLE)?;
        kernels.put_all(library.kernels.values().copied(), count as usize)
    }

    fn cuLibraryGetModule(module: Out<u64>, library: u64) {
        module.check()?;
        module.put(module_of(&here()?, library)?)
    }

    fn cuLibraryGetGlobal, cuLibraryGetManaged(address: Out<u64>, size: Out<usize>, library: u64, name: Text) {
        let module = module_of(&here()?, library)?;
        let (at, length) = variable(module, name.get()?, Place::Anywhere)?;
        address.put_if(at);
        size.put_if(pages::size(length)?);
        Ok(())
    }

    // A kernel serves as its own function in every context.
    fn cuKernelGetFunction(function: Out<u64>, kernel: u64) {
        function.check()?;
        let call = here()?;
        let library = with(kernel, |function| Ok(function.library))?.ok_or(Code::INVALID_HANDLE)?;
        module_of(&call, library)?;
        function.put(kernel)
    }

    fn cuKernelGetLibrary(library: Out<u64>, kernel: u64) {
        library.put(with(kernel, |function| function.library.ok_or(Code::INVALID_HANDLE))?)
    }

    fn cuKernelGetName, cuFuncGetName(name: Out<*const c_char>, function: u64) {
        // The name lives as long as the function does, as the API says.
        name.put(with(function, |function| Ok(function.c_name.as_ptr()))?)
    }

    fn cuKernelGetAttribute(value: Out<i32>, which: u32, kernel: u64, device: i32) {
        process()?.card(device)?;
        value.put(attribute(kernel, which)?)
    }

    fn cuKernelSetAttribute(which: u32, value: i32, kernel: u64, device: i32) {
        process()?.card(device)?;
        set_attribute(kernel, which, value)
    }

    fn cuKernelSetCacheConfig(kernel: u64, config: u32, device: i32) {
        process()?.card(device)?;
        if config > 3 { return Err(Code::INVALID_VALUE); }
        with(kernel, |_| Ok(()))
    }

    fn cuFuncGetAttribute(value: Out<i32>, which: u32, function: u64) { value.put(attribute(function, which)?) }
    fn cuFuncSetAttribute(function: u64, which: u32, value: i32) { set_attribute(function, which, value) }

    fn cuFuncSetCacheConfig, cuFuncSetSharedMemConfig(function: u64, config: u32) {
        if config > 3 { return Err(Code::INVALID_VALUE); }
        with(function, |_| Ok(()))
    }

    fn cuFuncGetModule(module: Out<u64>, function: u64) {
        module.check()?;
        let (own, library) = with(function, |function| Ok((function.module, function.library)))?;
        match library {
            Some(library) => module.put(module_of(&here()?, library)?),
            None => module.put(own),
        }
    }

    fn cuFuncIsLoaded(state: Out<u32>, function: u64) {
        with(function, |_| Ok(()))?;
        state.put(1)
    }

    fn cuFuncLoad(function: u64) {
        let call = here()?;
        match with(function, |function| Ok(function.library))? {
            Some(library) => module_of(&call, library).map(|_| ()),
            None => Ok(()),
        }
    }

    fn cuFuncSetBlockShape(function: u64, x: i32, y: i32, z: i32) {
        here()?;
        let size = |size: i32| u32::try_from(size).ok().filter(|size| *size > 0).ok_or(Code::INVALID_VALUE);
        let block = [size(x)?, size(y)?, size(z)?];
        with(function, |function| { function.block = block; Ok(()) })
    }

    fn cuFuncSetSharedSize(function: u64, bytes: u32) {
        here()?;
        with(function, |function| { function.shared = bytes; Ok(()) })
    }

    // Arguments of the oldest kind of launch: kernels compute nothing, so none is kept.
    fn cuParamSetSize(function: u64, bytes: u32) { let _ = bytes; here()?; with(function, |_| Ok(())) }
    fn cuParamSeti(function: u64, offset: i32, value: u32) { let _ = (offset, value); here()?; with(function, |_| Ok(())) }
    fn cuParamSetf(function: u64, offset: i32, value: f32) { let _ = (offset, value); here()?; with(function, |_| Ok(())) }

    fn cuParamSetv(function: u64, offset: i32, from: Opaque, bytes: u32) {
        let _ = (offset, bytes);
        here()?;
        if from.is_null() { return Err(Code::INVALID_VALUE); }
        with(function, |_| Ok(()))
    }

    fn cuLinkCreate, cuLinkCreate_v2(count: u32, options: Opaque, values: Opaque, link: Out<u64>) {
        let _ = (count, options, values);
        link.check()?;
        let call = here()?;
        let mut state = call.state();
        let handle = state.handle(Kind::Link);
        state.links.insert(handle, Link::default());
        link.put(handle)
    }

    fn cuLinkAddData, cuLinkAddData_v2(link: u64, kind: u32, data: In<u8>, size: usize, name: Text, count: u32, options: Opaque, values: Opaque) {
        let _ = (kind, name, count, options, values);
        if data.is_null() || size == 0 { return Err(Code::INVALID_VALUE); }
        link_add(link, &pages::read(data.address() as u64, size))
    }

    fn cuLinkAddFile, cuLinkAddFile_v2(link: u64, kind: u32, path: Text, count: u32, options: Opaque, values: Opaque) {
        let _ = (kind, count, options, values);
        process()?;
        link_add(link, &std::fs::read(path.get()?).map_err(|_| Code::FILE_NOT_FOUND)?)
    }

    fn cuLinkComplete(link: u64, image: Out<*const c_void>, size: Out<usize>) {
        image.check()?;
        let process = process()?;
        let mut state = process.state();
        let link = state.links.get_mut(&link).ok_or(Code::INVALID_HANDLE)?;
        if link.image.is_empty() { return Err(Code::INVALID_IMAGE); }
        // Read as text it must end.
        link.image.push(0);
        image.put(link.image.as_ptr().cast())?;
        size.put_if(link.image.len() - 1);
        Ok(())
    }

    fn cuLinkDestroy(link: u64) {
        let process = process()?;
        process.state().links.remove(&link).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }
}
