// Python with the estimator in its memory, as it was when the bundle was made: no module is imported, no fact is read.
// Pyodide's snapshots hold what Python's own code keeps in memory. A library that Python loaded lies in the same memory, at a
// place that depends on when it was loaded; so it is loaded before Python starts, when the snapshot is taken and ever after.
import createModule from "./pyodide.asm.mjs";
import { loadPyodide } from "./pyodide.mjs";

export const SITE = "/site";
export const LIBRARY = `${SITE}/pydantic_core/_pydantic_core.cpython-314-wasm32-emscripten.so`;
// Where the library's functions begin in the table of functions: after those of Pyodide, of which some engines have one more.
const TABLE = 14336;
export const inNode = typeof WorkerGlobalScope === "undefined" && Boolean(globalThis.process?.versions?.node);

async function read(name) {
  const url = new URL(name, import.meta.url);
  if (inNode) return new Response(await (await import("node:fs/promises")).readFile(url));
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url} cannot be had: ${response.status} ${response.statusText}`);
  return response;
}

async function unpacked(name) {
  const response = await read(name);
  if (inNode) return (await import("node:zlib")).gunzipSync(new Uint8Array(await response.arrayBuffer()));
  return new Uint8Array(await new Response(response.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());
}

async function compiled(name) {
  const response = await read(name);
  if (response.headers.get("content-type") === "application/wasm") return WebAssembly.compileStreaming(response);
  return WebAssembly.compile(await response.arrayBuffer());
}

// What Pyodide makes of its module, with pydantic's library beside it, and with `memory` in place of its own. `Module.…` are
// Emscripten's names: runtime functions of the dynamic loader.
function maker(library, memory) {
  return async (settings) => {
    settings.preRun.push((Module) => {
      Module.addRunDependency("library");
      Module.wasmTable.grow(TABLE - Module.wasmTable.length);
      const flags = { loadAsync: true, global: false, nodelete: true };
      library
        .then((wasm) => Module.loadWebAssemblyModule(wasm, flags, LIBRARY, {}, 0))
        .then((exports) => {
          Module.LDSO.loadedLibsByName[LIBRARY] = { refcount: Infinity, name: LIBRARY, exports, global: false };
          Module.removeRunDependency("library");
        })
        .catch((error) => settings.onAbort?.(error));
    });
    const Module = await createModule(settings);
    if (memory) remember(Module, await memory);
    return Module;
  };
}

// Puts all that Python knew into its memory. What it calls its own functions by is this engine's, not that of where the snapshot
// was taken: some have a function of WebAssembly for it, others none.
function remember(Module, snapshot) {
  const bytes = snapshot.subarray(HEADER(snapshot));
  if (bytes.length > Module.HEAPU8.length && !Module._emscripten_resize_heap(bytes.length)) {
    throw new Error(`there are no ${Math.ceil(bytes.length / 2 ** 20)} MiB of memory for it`);
  }
  const { _PyRuntime: state, _PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET: offset } = Module.GOT;
  const trampoline = (state.value + Module.HEAP32[offset.value / 4]) / 4;
  const own = Module.HEAP32[trampoline];
  Module.HEAPU8.set(bytes);
  Module.HEAP32[trampoline] = own;
}

// A snapshot begins with what refers to JavaScript's objects; its second word says how long that is.
const HEADER = (snapshot) => new Uint32Array(snapshot.buffer, snapshot.byteOffset, 2)[1];

// Starts Python; `take`: from nothing, so that a snapshot can be taken of it.
export async function start({ take = false } = {}) {
  const library = compiled("pydantic_core.wasm");
  const memory = take ? null : unpacked("memory.bin");
  const files = take ? null : unpacked("data.bin");
  const indexURL = new URL(".", import.meta.url);
  const python = await loadPyodide({
    indexURL: inNode ? (await import("node:url")).fileURLToPath(indexURL) : indexURL.href,
    lockFileContents: LOCK,
    createPyodideModule: maker(library, memory),
    stdout: (text) => console.log(text),
    stderr: (text) => console.warn(text),
    ...(take ? { _makeSnapshot: true } : { _loadSnapshot: memory.then((bytes) => bytes.slice(0, HEADER(bytes))) }),
  });
  if (!take) unpack(python, JSON.parse(new TextDecoder().decode(await files)));
  return python;
}

// No package is ever asked of Pyodide's own host.
const LOCK = '{"info": {"abi_version": "2026_0", "arch": "wasm32", "platform": "emscripten", "version": "0", "python": "3.14.2"}, "packages": {}}';

// Writes the files that questions may read, by their paths.
export function unpack(python, files) {
  for (const [path, text] of Object.entries(files)) {
    const at = `${SITE}/${path}`;
    python.FS.mkdirTree(at.slice(0, at.lastIndexOf("/")));
    python.FS.writeFile(at, text);
  }
}

// A function that answers: (kind, arguments as JSON) => [status, media type, body as bytes].
export function asking(python) {
  const ask = python.runPython("from estimator.api.browser.inside import ask\nask");
  return (kind, given) => {
    const found = ask(kind, given);
    try {
      return found.toJs();
    } finally {
      found.destroy();
    }
  };
}
