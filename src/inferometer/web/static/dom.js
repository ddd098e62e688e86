// Elements in one line: h("button", { type: "button", onclick: go }, "Go")

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(9).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function show(host, ...children) {
  host.replaceChildren(...children.flat(9).filter((c) => c !== null && c !== undefined && c !== false));
}

export function find(id) {
  return document.getElementById(id);
}

// A sentence at the foot of the page that goes away again; also read out by screen readers.
let silence = 0;
export function say(text) {
  const place = find("said");
  place.textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => (place.textContent = ""), 2600);
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    say(`${what} copied`);
  } catch {
    say(`the browser does not allow copying here: ${text}`);
  }
}

export function save(name, content, type) {
  const url =
    content instanceof Blob ? URL.createObjectURL(content) : URL.createObjectURL(new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 5000);
}
