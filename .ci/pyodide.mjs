// Runs `python -m tests.records` in WebAssembly: node .ci/pyodide.mjs PYODIDE TREE PACKAGES [--share]
// PYODIDE: the npm package's folder; TREE: the source; PACKAGES: where its dependencies lie.
import { pathToFileURL } from "node:url";

const [pyodide, tree, packages, ...words] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`).href);
const python = await loadPyodide({ stdout: console.log, stderr: console.error });
python.FS.mkdirTree("/tree");
python.FS.mkdirTree("/packages");
python.mountNodeFS("/tree", tree);
python.mountNodeFS("/packages", packages);
process.exitCode = python.runPython(`
import sys
sys.dont_write_bytecode = True
sys.path[:0] = ["/tree", "/packages"]
from tests.records import main
main(${JSON.stringify(words)})
`);
