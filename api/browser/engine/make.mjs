// Takes the snapshot that the engine starts from, and writes pages that show before it has started:
// node make.mjs SITE PAGES, in the engine's folder. SITE: the estimator and what it needs, as installed; PAGES: a folder.
import { readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { LIBRARY, SITE, asking, start } from "./runtime.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const [site, pages] = process.argv.slice(2);
const python = await start({ take: true });
python.FS.mkdirTree(SITE);
python.mountNodeFS(SITE, site);
python.runPython(`
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, "${SITE}")
from estimator.api.browser.inside import prepare
prepare()
`);
const ask = asking(python);
for (const [name, view] of [["index.html", ""]]) {
  const [, , body] = ask("page", JSON.stringify({ items: [], view }));
  writeFileSync(join(pages, name), body);
}
const others = Object.keys(python._module.LDSO.loadedLibsByName).filter((name) => ![LIBRARY, "__main__"].includes(name));
if (others.length) throw new Error(`libraries that the engine does not load before it starts: ${others}`);
python.runPython("import gc; sys.path_importer_cache.clear(); gc.collect()");
const memory = python.makeMemorySnapshot();
writeFileSync(join(here, "memory.bin"), gzipSync(memory, { level: 9 }));

const files = {};
for (const path of readdirSync(join(site, "estimator"), { recursive: true })) {
  const at = join(site, "estimator", path);
  if (/\.(yaml|html)$/.test(path) && statSync(at).isFile()) files[`estimator/${path}`] = readFileSync(at, "utf8");
}
writeFileSync(join(here, "data.bin"), gzipSync(JSON.stringify(files), { level: 9 }));
console.log(JSON.stringify({ memory: memory.length, table: python._module.wasmTable.length }));
