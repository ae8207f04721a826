// Keeps the bundle's files: the second visit asks no server, and needs none. BUNDLE is written above when a bundle is made.
const name = `willitfit-${BUNDLE.digest}`;
const home = new URL("./", location.href).href;

addEventListener("install", (event) => {
  skipWaiting();
  event.waitUntil(caches.open(name).then((cache) => cache.addAll(BUNDLE.files.map((file) => new URL(file, home)))));
});

addEventListener("activate", (event) => {
  const others = caches.keys().then((names) => names.filter((one) => one.startsWith("willitfit-") && one !== name));
  event.waitUntil(others.then((names) => Promise.all(names.map((one) => caches.delete(one)))).then(() => clients.claim()));
});

addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || !request.url.startsWith(home)) return;
  const asked = request.mode === "navigate" ? home : request;
  event.respondWith(caches.match(asked, { ignoreSearch: true }).then((kept) => kept ?? fetch(request)));
});
