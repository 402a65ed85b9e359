// The versions, and which of them the other panels show.

import { byId, h } from "./dom.js";

/** `update(models)`; `onWatch(name)` is called when another version is chosen. */
export function modelTable(onWatch) {
  const rows = byId("model-rows");
  let shown = "";
  let watched = null;

  const watch = (name) => {
    watched = name;
    onWatch(name);
  };

  const row = ([name, model]) => {
    const radio = h("input", {
      type: "radio",
      name: "watched",
      "aria-label": `Watch ${name}`,
      checked: name === watched,
      onchange: () => watch(name),
      "data-name": name,
    });
    const state = model.state === "READY" && !model.serves ? "CONNECTING" : model.state;
    const versioned = h(
      "tr",
      {},
      h("td", {}, radio),
      h("th", { scope: "row" }, name.replace(/:0$/, "")),
      h("td", {}, h("span", { class: "badge", "data-state": state }, state)),
      h("td", { class: "number" }, String(model.epoch)),
      h("td", {}, model.aliases.join(", ") || "–"),
    );
    if (!model.reason) return [versioned];
    const reason = h("td", { class: "reason", colspan: 4 }, model.reason);
    return [versioned, h("tr", { class: "why", "data-state": state }, h("td"), reason)];
  };

  return (models) => {
    const text = JSON.stringify(models);
    if (text === shown) return;
    shown = text;
    if (!(watched in models)) {
      const names = Object.keys(models);
      watch(names.find((name) => models[name].serves) ?? names[0] ?? null);
    }
    const focused = document.activeElement?.dataset?.name;
    rows.replaceChildren(...Object.entries(models).flatMap(row));
    if (focused) rows.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
    byId("no-models").hidden = Object.keys(models).length > 0;
  };
}
