// One control of the plan: label, field, unit, help; a slider where bounds are known.
// Built from what /api/controls says.
import { combobox } from "./combobox.js";
import { h } from "./dom.js";
import { digits } from "./format.js";
import { standing, unitOf } from "./kind.js";
import { setPlan, state, valueOf } from "./state.js";

// Positions of a slider that doubles: 0 (where allowed), least, 2·least, … most.
function stops(control) {
  const positions = control.least === 0 ? [0] : [];
  for (let v = control.least || 1; v <= control.most; v *= 2) positions.push(v);
  if (positions.at(-1) !== control.most) positions.push(control.most);
  return positions;
}

function nearest(list, value) {
  const far = (stop) => Math.abs(Math.log2(stop + 0.5) - Math.log2(value + 0.5));
  return list.reduce((best, stop, i) => (far(stop) < far(list[best]) ? i : best), 0);
}

function bounds(control) {
  const { least, most } = control;
  if (least === null || least === undefined) return "";
  return most === null || most === undefined
    ? `at least ${digits(least, 6)}`
    : `${digits(least, 6)} to ${digits(most, 6)}`;
}

const helpText = (control) => [control.help, bounds(control), control.flag && `CLI: ${control.flag}`];
const defaultText = (control) => control.default_text || (control.default ?? "default");

function number(control, id, about) {
  const doubles = String(control.step ?? "").startsWith("x");
  const ranged = Number.isFinite(control.least) && Number.isFinite(control.most);
  const list = ranged && doubles ? stops(control) : null;
  const field = h("input", {
    id,
    type: "number",
    inputmode: "decimal",
    "aria-describedby": about,
    min: control.least,
    max: control.most,
    step: doubles || !control.step ? "any" : control.step,
    placeholder: defaultText(control),
    onchange: () => setPlan({ [control.name]: field.value === "" ? null : Number(field.value) }),
  });
  const slider =
    ranged &&
    h("input", {
      type: "range",
      tabindex: "0",
      "aria-label": control.label,
      "aria-describedby": about,
      min: list ? 0 : control.least,
      max: list ? list.length - 1 : control.most,
      step: list ? 1 : control.step || "any",
    });
  const chosen = () => (list ? list[Number(slider.value)] : Number(slider.value));
  if (slider) {
    slider.addEventListener("input", () => {
      field.value = chosen();
      setPlan({ [control.name]: chosen() }, true);
    });
    slider.addEventListener("change", () => setPlan({ [control.name]: chosen() }));
  }
  return {
    nodes: [h("div", { class: "field" }, field, control.unit && h("span", { class: "unit" }, control.unit)), slider],
    set(value) {
      if (document.activeElement !== field) field.value = value ?? "";
      if (!slider) return;
      const at = Number(value ?? control.least);
      slider.value = list ? nearest(list, at) : at;
      slider.setAttribute("aria-valuetext", `${digits(at, 6)} ${control.unit ?? ""}`.trim());
    },
  };
}

function choice(control, id, about) {
  const names = (control.choices ?? []).map((c) => (typeof c === "object" ? c : { name: String(c), label: String(c) }));
  const free = control.default === null || control.default === undefined;
  const field = h(
    "select",
    {
      id,
      "aria-describedby": about,
      onchange: () => setPlan({ [control.name]: field.value || null }),
    },
    free && h("option", { value: "" }, defaultText(control)),
    names.map((c) => h("option", { value: c.name }, c.label ?? c.name)),
  );
  return {
    nodes: [h("div", { class: "field" }, field)],
    set(value) {
      // a link may name what is no choice here
      if (value && !names.some((c) => c.name === value)) field.append(h("option", { value }, value));
      field.value = value ?? "";
    },
  };
}

function onOff(control, id, about) {
  const field = h("input", {
    id,
    type: "checkbox",
    role: "switch",
    "aria-describedby": about,
    onchange: () => setPlan({ [control.name]: field.checked }),
  });
  return { nodes: [h("div", { class: "field" }, field)], set: (value) => (field.checked = value === true) };
}

function text(control, id, about) {
  const field = h("input", {
    id,
    type: "text",
    spellcheck: "false",
    placeholder: defaultText(control),
    "aria-describedby": about,
    onchange: () => setPlan({ [control.name]: field.value.trim() || null }),
  });
  return {
    nodes: [h("div", { class: "field" }, field, control.unit && h("span", { class: "unit" }, control.unit))],
    set(value) {
      if (document.activeElement !== field) field.value = value ?? "";
    },
  };
}

// A name of the catalogue, searched by typing.
function search(entries, picked) {
  return (control, id, about) => {
    const box = combobox({ id, entries, taken: picked, describedBy: about, label: control.label });
    return { nodes: [box.element], set: (value) => box.set(value ?? "") };
  };
}

const KINDS = { number, choice, switch: onOff, text };

// entries/picked make it a search over names; everything else follows the control's kind.
export function controlOf(control, { entries, picked } = {}) {
  const id = `c-${control.name}`;
  const about = `${id}-help`;
  const made = (entries ? search(entries, picked) : (KINDS[control.kind] ?? text))(control, id, about);
  const wrong = h("p", { class: "wrong", id: `${id}-wrong`, role: "alert", hidden: true });
  const back = h(
    "button",
    {
      type: "button",
      class: "back",
      title: `Reset to: ${defaultText(control)}`,
      "aria-label": `${control.label}: back to its default`,
      onclick: () => setPlan({ [control.name]: null }),
    },
    "↺",
  );
  const element = h(
    "div",
    { class: `control of-${control.kind}`, "data-control": control.name },
    h("div", { class: "label" }, h("label", { for: id }, control.label), back),
    made.nodes,
    wrong,
    h(
      "p",
      { class: "help", id: about },
      helpText(control)
        .filter(Boolean)
        .map((line, i) => h("span", { class: `line${i}` }, line)),
    ),
  );
  return {
    name: control.name,
    element,
    refresh() {
      made.set(standing(control.name, valueOf(control.name)));
      const unit = element.querySelector(".unit");
      if (unit) unit.textContent = unitOf(control.name, control.unit);
      back.hidden = !(control.name in state.plan) || control.name === "model" || control.name === "gpu";
      const refused = state.refused?.control === control.name;
      wrong.hidden = !refused;
      wrong.textContent = refused ? state.refused.message : "";
      element.classList.toggle("refused", refused);
      const field = element.querySelector(`#${CSS.escape(id)}`);
      if (refused) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
      if (refused) element.closest("details")?.setAttribute("open", "");
    },
  };
}
