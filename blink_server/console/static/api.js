// Requests to the server this page came from. The API key lives in this tab's session storage and
// goes into a header, never into a URL.

const ROOT = new URL("..", import.meta.url);
const KEY = "blink-api-key";

export const origin = () => ROOT.href.replace(/\/$/, "");
export const apiKey = () => sessionStorage.getItem(KEY);

export function setApiKey(key) {
  if (key === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, key);
}

/** GET, or POST where there is a `body`. */
export function request(path, { body, signal } = {}) {
  const headers = {};
  if (apiKey() !== null) headers.Authorization = `Bearer ${apiKey()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  return fetch(new URL(path, ROOT), {
    method: body === undefined ? "GET" : "POST",
    body: body === undefined ? undefined : JSON.stringify(body),
    headers,
    signal,
    cache: "no-store",
    credentials: "omit",
  });
}

/** Server-sent events of a response: {name, data}, where `data` is null for a sign of life. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      yield* parts.map(parsed);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(part) {
  const event = { name: "message", data: null };
  for (const line of part.split("\n")) {
    if (line.startsWith("event: ")) event.name = line.slice(7);
    if (line.startsWith("data: ")) event.data = line.slice(6);
  }
  return event;
}
