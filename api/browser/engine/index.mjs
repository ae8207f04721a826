// Whether a transformer fits on a GPU, worked out where this runs: in Node and in browsers, without a server.
const inNode = typeof document === "undefined" && typeof WorkerGlobalScope === "undefined" && Boolean(globalThis.process?.versions?.node);

/** A question that is refused: what was wrong, where, and what to write instead. */
export class WillItFitError extends Error {
  constructor(problem) {
    super(problem.detail ?? problem.title);
    this.name = "WillItFitError";
    this.problem = problem;
  }
}

/** The estimator in a thread of its own, which starts at once. */
export class Engine {
  #thread;
  #waiting = new Map();
  #next = 0;

  constructor() {
    this.#thread = this.#started();
    this.#thread.catch(() => {}); // said to each question
    /** Resolves when the estimator answers, rejects where it cannot start. */
    this.ready = this.ask("ready").then(() => undefined);
    this.ready.catch(() => {});
  }

  async #started() {
    if (!inNode) {
      const thread = new Worker(new URL("./worker.mjs", import.meta.url), { type: "module" });
      thread.addEventListener("message", (event) => this.#answered(event.data));
      thread.addEventListener("error", (event) => this.#broken(event.message || "the web worker cannot be started"));
      return thread;
    }
    const { Worker: Thread } = await import(/* @vite-ignore */ /* webpackIgnore: true */ "node:worker_threads");
    const thread = new Thread(new URL("./worker.mjs", import.meta.url), { execArgv: [] }); // not this program's options
    thread.on("message", (message) => this.#answered(message));
    thread.on("error", (error) => this.#broken(error.message));
    thread.unref();
    return thread;
  }

  #answered(message) {
    const waiting = this.#waiting.get(message.id);
    this.#waiting.delete(message.id);
    if (inNode && !this.#waiting.size) this.#thread.then((thread) => thread.unref());
    if (message.failed !== undefined) waiting?.reject(new Error(message.failed));
    else waiting?.resolve({ status: message.status, type: message.type, body: message.body });
  }

  #broken(said) {
    for (const { reject } of this.#waiting.values()) reject(new Error(said));
    this.#waiting.clear();
  }

  /** The answer to a question as the service gives it: its status, media type and body as bytes. */
  async ask(kind, given = {}) {
    const thread = await this.#thread;
    const id = this.#next++;
    const answer = new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
    if (inNode) thread.ref();
    thread.postMessage({ id, kind, given: JSON.stringify(given) });
    return answer;
  }

  async #json(kind, given) {
    const { status, body } = await this.ask(kind, given);
    const said = JSON.parse(new TextDecoder().decode(body));
    if (status !== 200) throw new WillItFitError(said);
    return said;
  }

  /** One job in full. */
  estimate(job) {
    return this.#json("estimate", { job: JSON.stringify(job) });
  }

  /** Which usual ways of using a model fit on some hardware. */
  fit(question) {
    return this.#json("fit", question);
  }

  /** A page of the web page: `items` are its fields, as pairs of name and value. */
  async page(items, view = "") {
    const { status, type, body } = await this.ask("page", { items, view });
    return { status, type, text: new TextDecoder().decode(body) };
  }

  /** Ends the thread; what was asked and not answered is rejected. */
  async close() {
    (await this.#thread).terminate();
    this.#broken("the engine was closed");
  }
}

let shared;
const engine = () => (shared ??= new Engine());

/** One job in full, by an engine that is started when it is first needed. */
export const estimate = (job) => engine().estimate(job);
/** Which usual ways of using a model fit on some hardware, by the same engine. */
export const fit = (question) => engine().fit(question);
/** Ends the engine that `estimate` and `fit` share. */
export async function close() {
  await shared?.close();
  shared = undefined;
}
