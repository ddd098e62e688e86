// Text that can be read on a patch of colour: WCAG's contrast of 4.5 to 1.

function luminance(color) {
  const [r, g, b] = [1, 3, 5]
    .map((i) => parseInt(color.slice(i, i + 2), 16) / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function contrast(one, other) {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

// The first of some colours that can be read on a ground: readable(tint(blue, 0.4), muted, ink); else the last.
export function readable(ground, ...colors) {
  return colors.find((color) => contrast(color, ground) >= 4.5) ?? colors.at(-1);
}
