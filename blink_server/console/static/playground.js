// Asks a model something: chat or completion, streamed, with what each token might have been.

import { apiKey, events, origin, request } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { count, duration, rate } from "./format.js";
import { curl, python } from "./snippets.js";
import { TokenText, chances } from "./tokens.js";

const PATHS = { chat: "v1/chat/completions", completion: "v1/completions" };

export class Playground {
  constructor() {
    this.form = byId("ask");
    this.talk = byId("talk");
    this.welcome = this.talk.firstElementChild;
    this.messages = []; // of the chat so far
    this.running = null;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running === null) this.#ask();
    });
    this.form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.form.requestSubmit();
    });
    this.form.addEventListener("input", () => this.#changed());
    byId("stop").addEventListener("click", () => this.running?.abort());
    byId("clear").addEventListener("click", () => this.#clear());
    for (const button of document.querySelectorAll("[data-copy]")) {
      button.addEventListener("click", () => copy(button));
    }
    this.#changed();
  }

  /** The models that may be chosen: those that serve, by name and by version. */
  offer(models) {
    const select = byId("model");
    const serving = Object.keys(models).filter((name) => models[name].serves);
    const bases = new Set(serving.map((name) => name.slice(0, name.lastIndexOf(":"))));
    const aliases = serving.flatMap((name) => models[name].aliases);
    const names = [...new Set([...bases, ...aliases, ...serving])];
    if ([...select.options].map(({ value }) => value).join() === names.join()) return;
    const before = select.value;
    select.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    if (names.includes(before)) select.value = before;
    this.#changed();
  }

  get #chat() {
    return this.form.elements.kind.value === "chat";
  }

  #body(prompt) {
    const { elements } = this.form;
    const body = { model: elements.model.value };
    if (this.#chat) {
      const system = elements.system.value.trim();
      body.messages = [
        ...(system === "" ? [] : [{ role: "system", content: system }]),
        ...this.messages,
        { role: "user", content: prompt },
      ];
    } else {
      body.prompt = prompt;
    }
    for (const name of ["temperature", "top_p", "top_k", "seed", "max_tokens"]) {
      if (elements[name].value !== "") body[name] = Number(elements[name].value);
    }
    const stop = elements.stop.value.split("\n").filter((line) => line !== "");
    if (stop.length > 0) body.stop = stop;
    return { ...body, stream: true };
  }

  /** The same with what only this page asks for. */
  #asked(prompt) {
    const body = { ...this.#body(prompt), stream_options: { include_usage: true } };
    const given = this.form.elements.alternatives.value;
    if (given === "") return body;
    const alternatives = Number(given);
    return this.#chat
      ? { ...body, logprobs: true, top_logprobs: alternatives }
      : { ...body, logprobs: alternatives };
  }

  #changed() {
    byId("system-field").hidden = !this.#chat;
    setText(byId("prompt-label"), this.#chat ? "Message" : "Text to go on with");
    const body = this.#body(this.form.elements.prompt.value || "Hello");
    const withKey = apiKey() !== null;
    const path = PATHS[this.#chat ? "chat" : "completion"];
    setText(byId("curl"), curl(origin(), path, body, withKey));
    setText(byId("python"), python(origin(), this.#chat, body, withKey));
  }

  #clear() {
    this.running?.abort();
    this.messages = [];
    this.talk.replaceChildren(this.welcome);
    byId("token").hidden = true;
    setText(byId("outcome"), "");
    this.#changed();
  }

  async #ask() {
    const { prompt } = this.form.elements;
    const [chat, asked, said] = [this.#chat, this.#asked(prompt.value), prompt.value];
    const answer = this.#entry(chat, said);
    this.#run(new AbortController());
    const outcome = await this.#stream(asked, answer, this.running.signal);
    this.#run(null);
    setText(byId("outcome"), outcome);
    if (chat && answer.text !== "" && answer.entry.isConnected) {
      const content = answer.text;
      this.messages.push({ role: "user", content: said }, { role: "assistant", content });
      prompt.value = "";
    }
    this.#changed();
  }

  #run(controller) {
    this.running = controller;
    byId("send").disabled = controller !== null;
    byId("stop").disabled = controller === null;
    if (controller !== null) setText(byId("outcome"), "Waiting for the first token…");
  }

  #entry(chat, said) {
    const text = h("div", { class: "said" });
    const question = h("div", { class: "said" }, said);
    const entry = h("article", {}, h("h3", {}, chat ? "You" : "Text"), question);
    entry.append(h("h3", {}, chat ? "Model" : "Goes on"), text);
    this.welcome.remove();
    this.talk.append(entry);
    this.talk.scrollTop = this.talk.scrollHeight;
    return { entry, shown: new TokenText(text), text: "" };
  }

  /** Streams into `answer`; returns in words how it went. */
  async #stream(asked, answer, signal) {
    const run = { begun: performance.now(), first: null, last: null, usage: null, reason: null };
    try {
      const response = await request(PATHS[asked.messages ? "chat" : "completion"], {
        body: asked,
        signal,
      });
      if (!response.ok) throw new Error(await refusal(response));
      for await (const { data } of events(response)) {
        if (data === null || data === "[DONE]") continue;
        this.#take(JSON.parse(data), run, answer);
      }
    } catch (error) {
      if (!signal.aborted) return `Failed: ${error.message}`;
      run.reason = "stopped";
    }
    return summary(run);
  }

  #take(chunk, run, answer) {
    if (chunk.error) throw new Error(chunk.error.message);
    run.usage = chunk.usage ?? run.usage;
    for (const choice of chunk.choices) {
      const text = choice.delta?.content ?? choice.text ?? "";
      const low = this.talk.scrollHeight - this.talk.scrollTop - this.talk.clientHeight < 30;
      if (text !== "") {
        run.last = performance.now();
        run.first ??= run.last;
        answer.text += text;
      }
      answer.shown.add(text, chances(choice));
      if (low) this.talk.scrollTop = this.talk.scrollHeight;
      run.reason = choice.finish_reason ?? run.reason;
    }
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  return body.error?.message ?? `HTTP ${response.status}`;
}

function summary({ begun, first, last, usage, reason }) {
  const parts = [reason === "stopped" ? "Stopped." : `Finished: ${reason ?? "without a reason"}.`];
  if (first !== null) parts.push(`First token after ${duration((first - begun) / 1000)}.`);
  const tokens = usage?.completion_tokens;
  if (tokens !== undefined) parts.push(`${count(tokens)} tokens.`);
  if (tokens > 1 && last > first) {
    parts.push(`${rate(((tokens - 1) * 1000) / (last - first))} tokens/s.`);
  }
  return parts.join(" ");
}

async function copy(button) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(byId(button.dataset.copy).textContent);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here"; // plain HTTP from another machine
  }
  setTimeout(() => (button.textContent = name), 1500);
}
