// Elements without markup in strings: nothing that the server says is ever parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** An HTML element; an attribute "onclick" is a listener, false leaves an attribute out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** Writes only what differs, so that screen readers and layout are left in peace. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The place that an arrow key leads to in rows of `columns`, or null for any other key. */
export function moved(key, place, columns, count) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  if (!(key in steps)) return null;
  const next = place + steps[key];
  return next >= 0 && next < count ? next : place;
}
