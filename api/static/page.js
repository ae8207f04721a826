// What makes the pages quicker to use; each works without it.
"use strict";

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
for (const one of all(".scripted")) one.hidden = false;

// Names that complete as one types: those that have every word in them. "2x rtx" completes what follows the number.
const words = (text) => text.toLowerCase().split(/[^a-z0-9.]+/).filter(Boolean);
const lists = new Map();
function names(id) {
  if (!lists.has(id)) lists.set(id, all("option", document.getElementById(id)).map((one) => one.value));
  return lists.get(id);
}
function found(id, text) {
  const before = id === "gpus" ? /^(?:\d+\s+nodes?\s+of\s+)?(?:\d+\s*[x×]\s*)?/i.exec(text)[0] : "";
  const parts = words(text.slice(before.length).split("/").pop());
  if (!parts.length) return [];
  const first = parts.join("-");
  return names(id)
    .filter((name) => parts.every((part) => name.includes(part)))
    .sort((a, b) => b.startsWith(first) - a.startsWith(first) || a.length - b.length)
    .slice(0, 12)
    .map((name) => before + name);
}
function complete(input) {
  const id = input.getAttribute("list");
  const box = document.createElement("ul");
  const show = (open) => {
    box.hidden = !open;
    input.setAttribute("aria-expanded", String(open));
    if (!open) input.removeAttribute("aria-activedescendant");
  };
  const options = () => [...box.children];
  const at = () => options().findIndex((one) => one.getAttribute("aria-selected") === "true");
  const choose = (number) => {
    options().forEach((one, i) => one.setAttribute("aria-selected", String(i === number)));
    const one = options()[number];
    if (!one) return;
    input.setAttribute("aria-activedescendant", one.id);
    one.scrollIntoView({ block: "nearest" });
  };
  const take = (one) => {
    input.value = one.textContent;
    show(false);
  };
  input.removeAttribute("list");
  box.id = `${input.id}-names`;
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", "Names");
  input.after(box);
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-controls": box.id })) input.setAttribute(name, value);
  show(false);
  input.addEventListener("input", () => {
    const matches = found(id, input.value);
    box.replaceChildren(...matches.map((text, i) => {
      const one = document.createElement("li");
      one.id = `${box.id}-${i}`;
      one.setAttribute("role", "option");
      one.setAttribute("aria-selected", "false");
      one.textContent = text;
      return one;
    }));
    input.removeAttribute("aria-activedescendant");
    show(matches.length > 0 && !(matches.length === 1 && matches[0] === input.value));
  });
  input.addEventListener("keydown", (event) => {
    if (box.hidden) return;
    const count = options().length;
    if (event.key === "ArrowDown") choose((at() + 1) % count);
    else if (event.key === "ArrowUp") choose((Math.max(at(), 0) - 1 + count) % count);
    else if (event.key === "Enter" && at() >= 0) take(options()[at()]);
    else if (event.key === "Escape") show(false);
    else return;
    event.preventDefault();
  });
  box.addEventListener("mousedown", (event) => {
    event.preventDefault(); // the input keeps the focus
    const one = event.target.closest("[role=option]");
    if (one) take(one);
  });
  input.addEventListener("blur", () => show(false));
}
all("input[list]").forEach(complete);

// Short addresses: fields that are empty, or as usual, are not sent.
for (const form of all("form")) {
  form.addEventListener("formdata", (event) => {
    if (form.method !== "get") return;
    for (const [name, value] of [...event.formData]) {
      const field = form.elements.namedItem(name);
      if (!value.trim() || value === field?.dataset?.usual) event.formData.delete(name);
    }
  });
  form.addEventListener("submit", () => {
    form.classList.add("busy");
    form.setAttribute("aria-busy", "true");
  });
}
addEventListener("pageshow", () => {
  for (const form of all("form.busy")) {
    form.classList.remove("busy");
    form.removeAttribute("aria-busy");
  }
});

for (const button of all(".copy")) {
  if (!navigator.clipboard || document.querySelector("form[method=post]")) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  });
}

// What is alive at a moment of the timeline: under the pointer, or by the arrow keys.
for (const svg of all(".timeline svg")) {
  const strips = all(".strip", svg);
  const readout = document.querySelector(".readout");
  const edges = strips.map((one) => Number(one.getAttribute("x")));
  let now = -1;
  const look = (number) => {
    strips[now]?.classList.remove("at");
    now = Math.min(Math.max(number, 0), strips.length - 1);
    strips[now].classList.add("at");
    readout.textContent = strips[now].querySelector("title").textContent;
  };
  const box = svg.closest(".scroll");
  box.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    look(now + by);
    const rect = strips[now].getBoundingClientRect();
    const frame = box.getBoundingClientRect();
    if (rect.right > frame.right || rect.left < frame.left) box.scrollLeft += rect.left - frame.left - frame.width / 2;
  });
  svg.addEventListener("pointermove", (event) => {
    const at = svg.createSVGPoint();
    at.x = event.clientX;
    const x = at.matrixTransform(svg.getScreenCTM().inverse()).x;
    if (x < edges[0]) return;
    let number = edges.findIndex((edge) => edge > x);
    number = number < 0 ? strips.length - 1 : number - 1;
    if (number !== now) look(number);
  });
}

// A file that is dropped, or chosen, is put into the field, where it can be read before it is sent.
for (const form of all("form.drop")) {
  const most = 200 * 1024;
  const boxes = all(".pasted", form);
  const put = async (box, file) => {
    if (!file) return;
    const text = box.querySelector("textarea");
    const small = file.size <= most;
    text.setCustomValidity(small ? "" : `${file.name} has ${Math.round(file.size / 1024)} KiB; a file of settings has at most 200`);
    if (small) {
      text.value = await file.text();
      text.closest("details")?.setAttribute("open", "");
    }
    text.reportValidity();
  };
  for (const box of boxes) {
    const text = box.querySelector("textarea");
    text.addEventListener("input", () => text.setCustomValidity(""));
    box.querySelector("[type=file]").addEventListener("change", (event) => put(box, event.target.files[0]));
  }
  for (const kind of ["dragenter", "dragover"]) {
    form.addEventListener(kind, (event) => {
      event.preventDefault();
      form.classList.add("over");
    });
  }
  form.addEventListener("dragleave", () => form.classList.remove("over"));
  form.addEventListener("drop", (event) => {
    event.preventDefault();
    form.classList.remove("over");
    put(event.target.closest(".pasted") ?? boxes[0], event.dataTransfer.files[0]);
  });
}

// What is put into other pages has this service's address.
for (const one of all(".here")) one.textContent = one.textContent.replaceAll(one.dataset.host, location.origin);
