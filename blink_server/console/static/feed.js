// Follows the server's feed while the page is in sight; comes back when it is lost.

import { apiKey, events, request, setApiKey } from "./api.js";

const FIRST_WAIT = 500;
const LONGEST_WAIT = 10_000;
const SILENCE = 25_000; // the server gives a sign of life every 10 s

/** Makes `change` part of `state`; null takes a key away. */
export function merge(state, change) {
  for (const [key, value] of Object.entries(change)) {
    if (value === null) delete state[key];
    else if (isObject(value) && isObject(state[key])) merge(state[key], value);
    else state[key] = value;
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * Never returns. `onState(state)` is called with the whole state whenever some of it has changed,
 * `onConnection(status, seconds)` with "connecting", "live", "paused", "locked" or "lost";
 * `askForKey(refused)` gives a key, and `refused` tells that the last one was not taken.
 */
export async function follow({ onState, onConnection, askForKey }) {
  let wait = FIRST_WAIT;
  for (;;) {
    if (document.hidden) {
      onConnection("paused");
      await inSight();
    }
    onConnection("connecting");
    const outcome = await watch((state) => {
      wait = FIRST_WAIT;
      onConnection("live");
      onState(state);
    });
    if (outcome === "locked") {
      onConnection("locked");
      const refused = apiKey() !== null;
      setApiKey(null);
      setApiKey(await askForKey(refused));
    } else if (!document.hidden) {
      onConnection("lost", wait / 1000);
      await pause(wait * (0.75 + Math.random() / 2));
      wait = Math.min(2 * wait, LONGEST_WAIT);
    }
  }
}

/** One connection, to its end: "locked" where a key is needed, else "ended". */
async function watch(onState) {
  const controller = new AbortController();
  const end = () => controller.abort();
  const hide = () => document.hidden && end();
  let silent = setTimeout(end, SILENCE);
  document.addEventListener("visibilitychange", hide);
  try {
    const response = await request("console/events", { signal: controller.signal });
    if (response.status === 401) return "locked";
    if (!response.ok) return "ended";
    let state = {};
    for await (const { name, data } of events(response)) {
      clearTimeout(silent);
      silent = setTimeout(end, SILENCE);
      if (name === "bye") return "ended";
      if (data === null) continue;
      if (name === "state") state = JSON.parse(data);
      else merge(state, JSON.parse(data));
      onState(state);
    }
  } catch {
    // Whatever went wrong: it is shown that there is no connection, and tried again.
  } finally {
    clearTimeout(silent);
    document.removeEventListener("visibilitychange", hide);
    end();
  }
  return "ended";
}

function inSight() {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
  });
}

function pause(milliseconds) {
  return new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    addEventListener("online", resolve, { once: true });
  });
}
