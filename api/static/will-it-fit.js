// <will-it-fit model="qwen3-8b" on="rtx-4090"></will-it-fit>: whether a model fits, in a page of yours.
// Attributes: model, on; tokens (of a run, for its hours and cost); job (fields of one job, as in an address; without it, every usual way);
// server (without it, where this file is from); theme (light or dark); edit (the reader may ask about other hardware).
// Events: "will-it-fit" with the answer, "will-it-fit-error" with the problem.

const HOME = new URL("..", import.meta.url).href;
const TONES = { fits: "good", tight: "some", "does not fit": "bad" };
const STYLE = `
:host { --ground: #fff; --ink: #1c1d1f; --faint: #5c5f64; --line: #dcd9d0; --accent: #1a56ae; --good: #17693a; --some: #7a4f00; --bad: #a3261e;
  display: block; color-scheme: light; font: 15px/1.45 system-ui, sans-serif; color: var(--ink); container-type: inline-size; }
:host([hidden]) { display: none; }
.dark { --ground: #1d2024; --ink: #e9e7e2; --faint: #a6aab0; --line: #373b42; --accent: #8ab6f7; --good: #85d7a5; --some: #ebc373; --bad: #f5a59c; color-scheme: dark; }
.box { background: var(--ground); color: var(--ink); border: 1px solid var(--line); border-radius: .4rem; padding: .75rem 1rem; overflow-wrap: anywhere; }
p { margin: .3rem 0 0; } .title { margin: 0; font-size: 1.05rem; font-weight: 600; } .small { color: var(--faint); font-size: .85rem; }
a { color: var(--accent); } .good { color: var(--good); } .some { color: var(--some); } .bad { color: var(--bad); } b { white-space: nowrap; }
table { border-collapse: collapse; width: 100%; margin-top: .5rem; font-size: .92rem; }
caption { text-align: left; font-weight: 600; font-size: 1.05rem; } th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-top: 1px solid var(--line); vertical-align: top; }
thead th { color: var(--faint); font-weight: 500; border: 0; } tbody th { font-weight: 500; } tr { overflow-wrap: normal; } .n { white-space: nowrap; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: .6rem; margin-top: .5rem; background: var(--line); border-radius: .3rem; } svg rect { fill: currentColor; } svg line { stroke: var(--ink); stroke-width: 2; }
form[hidden] { display: none; } form:not([hidden]) { display: flex; flex-wrap: wrap; gap: .5rem; align-items: end; margin-top: .6rem; } label { font-size: .85rem; color: var(--faint); }
input, button { font: inherit; color: var(--ink); background: var(--ground); border: 1px solid #80858d; border-radius: .3rem; padding: .3rem .5rem; } input { display: block; width: 11rem; max-width: 100%; box-sizing: border-box; }
button { color: var(--accent); border-color: var(--accent); cursor: pointer; } :focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
@container (max-width: 24rem) { .wide { display: none; } }`;
const SHEET = new CSSStyleSheet(); // which a page's policy on styles lets through
SHEET.replaceSync(STYLE);

const speed = (row) => (row.tokens_per_second === null ? "" : Math.round(row.tokens_per_second).toLocaleString("en"));
const run = (hours, total, currency) => (hours === null ? "" : `${hours.toFixed(1)} h${total ? `, ${total} ${currency}` : ""}`);
const gib = (bytes) => `${(bytes / 2 ** 30).toFixed(1)} GiB`;

// An element with its attributes and what is within: text is text, never HTML.
function make(name, attributes = {}, ...within) {
  const svg = ["svg", "rect", "line"].includes(name);
  const one = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
  one.append(...within);
  return one;
}

const verdict = (text) => make("b", { class: TONES[text] ?? "", part: "verdict" }, text);

function bar(total, edge, tone) {
  const scale = 100 / Math.max(total, edge);
  const shapes = [make("rect", { width: `${total * scale}%`, height: "100%" })];
  if (edge) shapes.push(make("line", { x1: `${edge * scale}%`, x2: `${edge * scale}%`, y1: 0, y2: "100%" }));
  return make("svg", { class: tone, "aria-hidden": "true", part: "bar" }, ...shapes);
}

// One job: its verdict, what it needs, and what would make it fit.
function ofJob(answer, question) {
  const { total_bytes: total, capacity_bytes: edge } = answer.memory;
  const found = [make("p", { class: "title", part: "title" }, `${question}: `, verdict(answer.verdict)), bar(total, edge, TONES[answer.verdict] ?? ""), make("p", {}, answer.reason)];
  if (answer.run?.hours) found.push(make("p", {}, `The run: ${run(answer.run.hours, answer.cost?.total, answer.cost?.currency)}`));
  if (!answer.fits && answer.suggestions.length) found.push(make("p", { class: "small" }, answer.suggestions[0]));
  return found;
}

// Every usual way of using a model on some hardware.
function ofWays(fit) {
  const timed = fit.rows.some((row) => row.tokens_per_second !== null);
  const runs = fit.rows.some((row) => row.hours !== null);
  const more = fit.rows.some((row) => row.would_fit_with || row.problem);
  const rows = fit.rows.map((row) =>
    make("tr", {}, make("th", { scope: "row" }, row.way), make("td", {}, verdict(row.verdict)),
      make("td", { class: "n" }, row.total_bytes === null ? "" : gib(row.total_bytes)), ...(timed ? [make("td", { class: "n wide" }, speed(row))] : []), ...(runs ? [make("td", {}, run(row.hours, row.total, fit.rent?.currency))] : []),
      ...(more ? [make("td", { class: "wide small" }, row.would_fit_with || row.problem)] : [])));
  const heads = [["Way"], ["Verdict"], ["Per GPU"], ...(timed ? [["Tokens/s", "wide"]] : []), ...(runs ? [["The run"]] : []), ...(more ? [["Would fit with", "wide"]] : [])];
  const head = make("tr", {}, ...heads.map(([text, kind = ""]) => make("th", { scope: "col", class: kind }, text)));
  const table = make("table", {}, make("caption", {}, `Does ${fit.model} fit on ${fit.hardware}?`), make("thead", {}, head), make("tbody", {}, ...rows));
  if (!fit.rent) return [table];
  const { price_per_hour: price, currency, provider, price_as_of: day } = fit.rent;
  return [table, make("p", { class: "small" }, `Rents from ${price} ${currency} an hour (${provider}, price of ${day})`)];
}

class WillItFit extends HTMLElement {
  static observedAttributes = ["model", "on", "tokens", "job", "server", "theme", "edit"];
  #box = make("div", { class: "box", part: "box" });
  #said = make("div", { "aria-live": "polite" });
  #form = make("form", { hidden: "" });
  #dark = matchMedia("(prefers-color-scheme: dark)");
  #asking = null;
  #waiting = false;

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open", delegatesFocus: true });
    const input = make("input", { name: "on", autocomplete: "off", autocapitalize: "off", spellcheck: "false", required: "" });
    this.#form.append(make("label", {}, "Hardware", input), make("button", {}, "Will it fit?"));
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (input.value.trim() === this.getAttribute("on")) this.#ask();
      else this.setAttribute("on", input.value.trim());
    });
    this.#box.append(this.#said, this.#form);
    root.adoptedStyleSheets = [SHEET];
    root.append(this.#box);
  }

  connectedCallback() {
    this.#dark.addEventListener("change", this.#paint);
    this.attributeChangedCallback();
  }

  disconnectedCallback() {
    this.#dark.removeEventListener("change", this.#paint);
    this.#asking?.abort();
  }

  // Several attributes that change at once are one question.
  attributeChangedCallback() {
    this.#paint();
    if (this.#waiting || !this.isConnected) return;
    this.#waiting = true;
    queueMicrotask(() => {
      this.#waiting = false;
      if (this.isConnected) this.#ask();
    });
  }

  #paint = () => {
    const theme = this.getAttribute("theme");
    this.#box.classList.toggle("dark", theme ? theme === "dark" : this.#dark.matches);
    this.#form.hidden = !this.hasAttribute("edit");
    this.#form.elements.on.value = this.getAttribute("on") ?? "";
  };

  async #ask() {
    this.#asking?.abort();
    const asking = (this.#asking = new AbortController());
    const server = new URL(`${this.getAttribute("server") ?? HOME}/`.replace(/\/+$/, "/"), document.baseURI);
    const fields = new URLSearchParams(this.getAttribute("job") ?? "");
    for (const name of ["model", "on"]) if (this.getAttribute(name)) fields.set(name, this.getAttribute(name));
    const one = fields.has("task");
    if (this.getAttribute("tokens")) fields.set(one ? "training.tokens" : "tokens", this.getAttribute("tokens"));
    this.#box.setAttribute("aria-busy", "true");
    if (!this.#said.hasChildNodes()) this.#said.append(make("slot", {}, "…"));
    try {
      const answer = await fetch(new URL(`v1/${one ? "estimate" : "fit"}?${fields}`, server), { signal: asking.signal });
      const found = await answer.json();
      if (!answer.ok) throw Object.assign(new Error(found.detail), { problem: found });
      const question = [fields.get("model"), fields.get("on")].filter(Boolean).join(" on ");
      const { software, data } = found.versions;
      const more = make("a", { href: new URL(`?${fields}`, server) }, "The whole answer");
      this.#say(...(one ? ofJob(found, question) : ofWays(found)), make("p", { class: "small" }, more, ` · willitfit ${software}, data of ${data}`));
      this.dispatchEvent(new CustomEvent("will-it-fit", { detail: found, bubbles: true, composed: true }));
    } catch (error) {
      if (asking.signal.aborted) return;
      const said = error.problem ? error.message : `${server.host} does not answer`;
      this.#say(make("p", { class: "bad" }, said), make("p", {}, make("slot")));
      this.dispatchEvent(new CustomEvent("will-it-fit-error", { detail: error.problem ?? error, bubbles: true, composed: true }));
    }
    this.#box.removeAttribute("aria-busy");
  }

  #say(...within) {
    this.#said.replaceChildren(...within);
  }
}

if (!customElements.get("will-it-fit")) customElements.define("will-it-fit", WillItFit);
