// An answer, token by token; what is pointed at is told with its alternatives.

import { byId, h, setText } from "./dom.js";
import { percent } from "./format.js";

/** Log-probabilities of a chunk as [{token, bytes, logprob, top: [[token, logprob], ...]}, ...]. */
export function chances(choice) {
  const given = choice.logprobs;
  if (!given) return [];
  if (given.content) {
    return given.content.map((one) => ({
      token: one.token,
      bytes: one.bytes,
      logprob: one.logprob,
      top: one.top_logprobs.map((other) => [other.token, other.logprob]),
    }));
  }
  return given.tokens.map((token, place) => ({
    token,
    bytes: null,
    logprob: given.token_logprobs[place],
    top: Object.entries(given.top_logprobs?.[place] ?? {}),
  }));
}

/**
 * The text of a chunk in pieces, each with the tokens it is made of: several where they end within
 * a character, all of them where the text is not what they say, as when a stop string was cut off.
 */
export function pieces(text, tokens) {
  const decoder = new TextDecoder();
  const found = [];
  let waiting = [];
  for (const token of tokens) {
    waiting.push(token);
    const { bytes } = token;
    const piece = bytes ? decoder.decode(new Uint8Array(bytes), { stream: true }) : token.token;
    if (piece === "") continue;
    found.push({ text: piece, tokens: waiting });
    waiting = [];
  }
  const alike = waiting.length === 0 && found.map((piece) => piece.text).join("") === text;
  return alike ? found : [{ text, tokens }];
}

/** An answer that grows. Tokens that end within a character wait for the rest of it. */
export class TokenText {
  constructor(element) {
    this.element = element;
    this.waiting = [];
    element.addEventListener("pointerover", (event) => this.#show(event.target));
    element.addEventListener("focusin", (event) => this.#show(event.target, true));
    element.addEventListener("keydown", (event) => this.#key(event));
  }

  add(text, tokens) {
    const all = [...this.waiting, ...tokens];
    this.waiting = text === "" ? all : [];
    if (text === "") return;
    for (const piece of pieces(text, all)) this.element.append(this.#span(piece));
  }

  #span({ text, tokens }) {
    if (tokens.length === 0) return document.createTextNode(text);
    const first = this.element.querySelector("[tabindex]") === null;
    const span = h("span", { class: "token", tabindex: first ? "0" : "-1" }, text);
    span.tokens = tokens;
    const chance = Math.exp(tokens.reduce((sum, { logprob }) => sum + logprob, 0));
    span.style.setProperty("--doubt", `${Math.round((1 - chance) * 100)}%`);
    return span;
  }

  #key(event) {
    const next = {
      ArrowRight: event.target.nextElementSibling,
      ArrowLeft: event.target.previousElementSibling,
      Home: this.element.firstElementChild,
      End: this.element.lastElementChild,
    }[event.key];
    if (!next?.tokens) return;
    event.preventDefault();
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  #show(span, aloud = false) {
    if (!span.tokens) return;
    byId("token").hidden = false;
    setText(byId("token-told"), span.tokens.map(told).join(" "));
    byId("token-rows").replaceChildren(...span.tokens.flatMap(({ token, top }) => rows(token, top)));
    if (aloud) setText(byId("token-said"), span.tokens.map(told).join(" "));
  }
}

/** A token as it can be seen: “\n” for a line's end. */
const quoted = (token) =>
  `“${token.replace(/[\u0000-\u001f\u007f]/g, (control) => JSON.stringify(control).slice(1, -1))}”`;

const told = ({ token, logprob }) =>
  `${quoted(token)} had ${percent(Math.exp(logprob))} (log-probability ${logprob.toFixed(3)}).`;

function rows(chosen, top) {
  const best = [...top].sort((a, b) => b[1] - a[1]);
  return best.map(([token, logprob]) => {
    const bar = h("span", { class: "bar" });
    bar.style.width = `${Math.exp(logprob) * 100}%`;
    return h(
      "tr",
      { class: token === chosen ? "chosen" : false },
      h("th", { scope: "row" }, quoted(token)),
      h("td", { class: "number" }, percent(Math.exp(logprob))),
      h("td", { class: "chance" }, bar),
    );
  });
}
