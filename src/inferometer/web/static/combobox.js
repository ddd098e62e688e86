// A text field that searches a list, by WAI-ARIA's pattern: arrows move, Enter takes, Escape leaves.
import { h, show } from "./dom.js";
import { on } from "./state.js";

const MOST = 60; // entries shown at once

// Every word must occur: "llama 70" finds llama-3.1-70b
function fits(entry, text) {
  const hay = `${entry.name} ${entry.label ?? ""} ${entry.detail ?? ""}`.toLowerCase();
  return text
    .toLowerCase()
    .split(/\s+/)
    .every((word) => hay.includes(word));
}

// entries(): [{ name, label, detail }]; taken(name) also hears of names that the list has not (a Hugging Face id).
export function combobox({ id, entries, taken, describedBy, label }) {
  const list = h("ul", { id: `${id}-list`, role: "listbox", hidden: true, class: "options", "aria-label": label });
  const input = h("input", {
    id,
    type: "text",
    role: "combobox",
    spellcheck: "false",
    "aria-expanded": "false",
    "aria-autocomplete": "list",
    "aria-controls": list.id,
    "aria-describedby": describedBy,
  });
  let active = -1;
  let matches = [];
  let current = "";
  let early = false; // typed before the list was there: it opens when it comes

  function open(all) {
    const text = all ? "" : input.value.trim();
    early = !entries().length;
    matches = entries()
      .filter((entry) => fits(entry, text))
      .slice(0, all ? 500 : MOST);
    active = all ? matches.findIndex((entry) => entry.name === current) : matches.length ? 0 : -1;
    show(
      list,
      matches.map((entry, i) =>
        h(
          "li",
          {
            id: `${id}-${i}`,
            role: "option",
            "aria-selected": String(i === active),
            onpointerdown: (event) => {
              event.preventDefault();
              take(entry.name);
            },
          },
          h("b", {}, entry.name),
          entry.detail && h("span", {}, entry.detail),
        ),
      ),
    );
    list.hidden = !matches.length;
    input.setAttribute("aria-expanded", String(!list.hidden));
    mark();
  }

  on("answer", () => early && document.activeElement === input && open(false));

  function close() {
    list.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function mark() {
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
    const item = list.children[active];
    if (item) {
      input.setAttribute("aria-activedescendant", item.id);
      item.scrollIntoView({ block: "nearest" });
    }
  }

  function take(name) {
    close();
    input.value = name;
    if (name && name !== current) {
      current = name;
      taken(name);
    }
  }

  input.addEventListener("focus", () => input.select());
  input.addEventListener("click", () => list.hidden && open(true));
  input.addEventListener("input", () => open(false));
  input.addEventListener("blur", () => {
    close();
    take(input.value.trim() || current);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) return open(true);
      active = (active + (event.key === "ArrowDown" ? 1 : -1) + matches.length) % matches.length;
      mark();
    } else if (event.key === "Enter") {
      event.preventDefault();
      take(!list.hidden && matches[active] ? matches[active].name : input.value.trim());
    } else if (event.key === "Escape" && !list.hidden) {
      event.preventDefault(); // the list alone is closed, not what it stands in
      input.value = current;
      close();
    }
  });
  return {
    element: h("div", { class: "combobox" }, input, list),
    input,
    set(name) {
      current = name;
      if (document.activeElement !== input) input.value = name;
    },
  };
}
