// The pages without a server: what a link or a form asks is worked out by the engine, and shown in place of what was there.
import { Engine } from "../engine/index.mjs";

const engine = new Engine();
const here = new URL("./", document.baseURI);
let ready = false;
let turn = 0;
let shown = 0;
engine.ready.then(() => (ready = true), () => {});

// The pages' own script, once for each page.
const enhance = () => import(`./page.js?${shown++}`);

const ours = (url) => url.origin === here.origin && [here.pathname, `${here.pathname}index.html`].includes(url.pathname);

function say(text, tone) {
  const answer = document.getElementById("answer");
  const box = document.createElement("section");
  box.className = `verdict ${tone}`;
  box.setAttribute("role", tone === "bad" ? "alert" : "status");
  const line = document.createElement("p");
  line.textContent = text;
  box.append(line);
  answer.replaceChildren(box);
}

function put(html, type) {
  const next = new DOMParser().parseFromString(type.startsWith("text/html") ? html : "", "text/html");
  if (type.startsWith("text/html")) {
    document.title = next.title;
    document.body.replaceWith(document.adoptNode(next.body));
    return enhance();
  }
  const text = document.createElement("pre");
  text.textContent = html;
  document.getElementById("answer").replaceChildren(text);
  return undefined;
}

// Shows what an address asks, with fields of a form that are not in it.
async function show(url, more = []) {
  const mine = ++turn;
  const view = url.searchParams.get("view") ?? "";
  const items = [...url.searchParams].filter(([name]) => name !== "view");
  const waiting = setTimeout(() => mine === turn && say(ready ? "Working it out, in this browser …" : "Loading the estimator into this browser, once …", ""), 150);
  try {
    const { type, text } = await engine.page([...items, ...more], view);
    clearTimeout(waiting);
    if (mine !== turn) return;
    await put(text, type);
    if (url.hash) document.getElementById(url.hash.slice(1))?.scrollIntoView();
    else scrollTo(0, 0);
    if (items.length || more.length) document.getElementById("answer").focus({ preventScroll: true });
  } catch (error) {
    clearTimeout(waiting);
    if (mine === turn) say(`This browser cannot work it out: ${error.message}`, "bad");
  }
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.href);
  if (!ours(url) || (url.hash && url.search === location.search)) return;
  event.preventDefault();
  history.pushState(null, "", url);
  show(url);
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  const url = new URL(form.getAttribute("action"), here);
  if (event.defaultPrevented || !ours(url)) return;
  event.preventDefault();
  const fields = [...new FormData(form, event.submitter)].filter(([, value]) => typeof value === "string");
  const sent = form.method === "post" ? fields : [];
  if (!sent.length) for (const [name, value] of fields) url.searchParams.append(name, value);
  history.pushState(null, "", url);
  show(url, sent);
});

addEventListener("popstate", () => show(new URL(location.href)));

if (location.search) show(new URL(location.href));
else enhance();

if ("serviceWorker" in navigator && isSecureContext) navigator.serviceWorker.register(new URL("sw.js", here)).catch(() => {});
