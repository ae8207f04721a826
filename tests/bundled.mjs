// Asks an npm package about jobs: node bundled.mjs INDEX, with a JSON array of jobs, each as text, at standard input; prints an
// array of what is said of each, as text. Jobs and answers are not read here: JavaScript has no 1.0 beside 1.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { Engine } = await import(pathToFileURL(process.argv[2]).href);
const engine = new Engine();
const answers = [];
for (const job of JSON.parse(readFileSync(0, "utf8"))) {
  const { body } = await engine.ask("estimate", { job });
  answers.push(new TextDecoder().decode(body));
}
await engine.close();
process.stdout.write(JSON.stringify(answers));
