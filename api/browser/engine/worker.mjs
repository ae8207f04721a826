// The estimator in a thread of its own: a web worker in browsers, a worker thread in Node. Messages in: {id, kind, given};
// messages out: {id, status, type, body}, or {id, failed} where something went wrong that is no answer.
import { asking, inNode, start } from "./runtime.mjs";

const ready = start().then(asking);
ready.catch(() => {}); // said to each question

function serve(port) {
  return async ({ id, kind, given }) => {
    try {
      const ask = await ready;
      if (kind === "ready") return port.postMessage({ id, status: 200, type: "text/plain", body: new Uint8Array() });
      const [status, type, body] = ask(kind, given);
      return port.postMessage({ id, status, type, body }, [body.buffer]);
    } catch (error) {
      return port.postMessage({ id, failed: String(error?.message ?? error) });
    }
  };
}

if (inNode) import("node:worker_threads").then(({ parentPort }) => parentPort.on("message", serve(parentPort)));
else {
  const answer = serve(self);
  self.addEventListener("message", (event) => answer(event.data));
}
