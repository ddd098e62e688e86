// Light and dark. The colours of both are CSS variables; charts read them from there.

const system = matchMedia("(prefers-color-scheme: dark)");
const watchers = [];

function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null; // pages from disk may have no storage
  }
}

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : system.matches;
}

const NEUTRAL = ["ink", "muted", "faint", "paper", "panel", "grid"];
const NAMES = [...NEUTRAL, "accent", "alert", "blue", "orange", "sky", "green", "vermillion", "purple", "grey"];
const read = {}; // "light", "dark" -> { ink, … }

// The colours of this theme by name: palette().blue
export function palette() {
  const theme = isDark() ? "dark" : "light";
  if (!read[theme]) {
    const style = getComputedStyle(document.documentElement);
    read[theme] = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }
  return read[theme];
}

export function boundColor(bound) {
  const p = palette();
  return (
    { memory: p.blue, compute: p.vermillion, communication: p.green, host: p.grey, wait: p.purple, draft: p.orange }[
      bound
    ] ?? p.muted
  );
}

export const boundWords = (bound) =>
  ({ host: "host", wait: "other stages", draft: "draft model" })[bound] ?? `${bound}-bound`;

// A colour on this paper: tint(palette().blue, 0.1)
export function tint(color, share) {
  const mix = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  const [over, under] = [mix(color), mix(palette().paper)];
  return (
    "#" +
    over
      .map((v, i) =>
        Math.round(under[i] + (v - under[i]) * share)
          .toString(16)
          .padStart(2, "0"),
      )
      .join("")
  );
}

export function onTheme(watcher) {
  watchers.push(watcher);
}

function tell(button) {
  button.textContent = isDark() ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
}

export function startTheme(button) {
  const chosen = stored();
  if (chosen) document.documentElement.dataset.theme = chosen;
  const changed = () => {
    tell(button);
    watchers.forEach((watcher) => watcher());
  };
  button.addEventListener("click", () => {
    const next = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // it holds until the page is closed
    }
    changed();
  });
  system.addEventListener("change", changed);
  tell(button);
}
