// Light, dark, or as the system has it; remembered for this browser.

const KEY = "blink-theme";
const NEXT = { system: "light", light: "dark", dark: "system" };

/** Makes `button` go through the themes; `onChange` is called when colours have changed. */
export function followTheme(button, onChange) {
  let theme = localStorage.getItem(KEY) ?? "system";
  const apply = () => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
    onChange();
  };
  button.addEventListener("click", () => {
    theme = NEXT[theme] ?? "system";
    localStorage.setItem(KEY, theme);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  apply();
}
