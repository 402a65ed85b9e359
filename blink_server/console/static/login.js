// The form that asks for the API key.

import { byId, setText } from "./dom.js";

/** A function that shows the form and waits for a key. */
export function loginForm() {
  const dialog = byId("login");
  const input = byId("key");
  const unlock = byId("unlock");
  let given = () => {};

  byId("login-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const key = input.value.trim();
    if (key === "") return;
    input.value = "";
    dialog.close();
    given(key);
  });
  byId("login-cancel").addEventListener("click", () => dialog.close());
  unlock.addEventListener("click", () => dialog.showModal());

  return (refused) => {
    setText(byId("login-error"), refused ? "The server does not take this key." : "");
    unlock.hidden = false;
    if (!dialog.open) dialog.showModal();
    return new Promise((resolve) => {
      given = (key) => {
        unlock.hidden = true;
        resolve(key);
      };
    });
  };
}
