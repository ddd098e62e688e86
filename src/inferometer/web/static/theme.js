// Light and dark, and Okabe and Ito's palette in both: told apart with any kind of colour vision.

const LIGHT = {
  ink: "#1f2933", muted: "#5b6672", faint: "#d5dae0", paper: "#ffffff", panel: "#fafbfc", grid: "#e9edf1",
  blue: "#0072B2", orange: "#E69F00", sky: "#56B4E9", green: "#009E73", vermillion: "#D55E00", purple: "#CC79A7", grey: "#7f7f7f",
};
const DARK = {
  ink: "#e6eaee", muted: "#9aa6b2", faint: "#3a444f", paper: "#151a20", panel: "#1b2129", grid: "#28303a",
  blue: "#4aa8e0", orange: "#f0b429", sky: "#8fd0f7", green: "#2fc79b", vermillion: "#f57f3b", purple: "#dd9cc0", grey: "#9aa3ad",
};

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

export const palette = () => (isDark() ? DARK : LIGHT);

export function boundColor(bound) {
  const p = palette();
  return { memory: p.blue, compute: p.vermillion, communication: p.green, host: p.grey, wait: p.purple, draft: p.orange }[bound] ?? p.muted;
}

export const boundWords = (bound) => ({ host: "host", wait: "other stages", draft: "draft model" })[bound] ?? `${bound}-bound`;

// A colour on this paper: tint("#0072B2", 0.1)
export function tint(color, share) {
  const mix = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  const [over, under] = [mix(color), mix(palette().paper)];
  return "#" + over.map((v, i) => Math.round(under[i] + (v - under[i]) * share).toString(16).padStart(2, "0")).join("");
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
