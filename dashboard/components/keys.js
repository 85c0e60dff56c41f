// Keys for all pages, and the button that copies a link. What a key does is a click on what the page shows anyway.
const CLICKS = {"[": "back", "]": "forward", "z": "out", "j": "next", "k": "previous"};
const HELP = [["1 – 6", "pages"], ["[  ]", "range back, forward"], ["z", "zoom out"], ["r", "refresh now"],
  ["/", "the line, or an id"], ["j  k", "next, previous request"], ["Esc", "clear a selection"], ["?", "this help"]];

export default function ({ data, parentElement, setTriggerValue }) {
  const button = parentElement.querySelector("button"), help = parentElement.querySelector(".help");
  help.innerHTML = HELP.map(([key, does]) => `<kbd>${key}</kbd><span>${does}</span>`).join("");
  const toggle = shown => { help.hidden = !shown; };

  // A link shows others the minutes that are seen here, not their own last 15.
  function address() {
    const url = new URL(location.href);
    if (data.seconds) {
      const now = Math.floor(Date.now() / 1000) * 1000;
      url.searchParams.set("start", new Date(now - data.seconds * 1000).toISOString().replace(".000", ""));
      url.searchParams.set("end", new Date(now).toISOString().replace(".000", ""));
    } else {
      url.searchParams.set("start", data.start);
      url.searchParams.set("end", data.end);
    }
    url.searchParams.set("range", "custom");
    return url.toString();
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(address());
      button.dataset.said = "copied";
    } catch {  // a page that was not loaded over HTTPS may not write to the clipboard
      prompt("Copy this link", address());
    }
    setTimeout(() => { delete button.dataset.said; }, 1500);
  }
  button.onclick = copy;

  function pressed(event) {
    const at = event.composedPath()[0];
    if (event.ctrlKey || event.metaKey || event.altKey || at.isContentEditable) return;
    if (["INPUT", "TEXTAREA", "SELECT"].includes(at.tagName)) return;
    const key = event.key;
    if (key === "Escape") return toggle(false);
    if (key === "?") return toggle(help.hidden);
    if (key === "r") return setTriggerValue("refresh", true);
    if (key === "/") document.querySelector(".st-key-go input")?.select();
    else if (key >= "1" && key <= "6") {
      document.querySelectorAll('[data-testid="stTopNavLink"], [data-testid="stSidebarNavLink"]')[key - 1]?.click();
    } else if (CLICKS[key]) {
      document.querySelector(`.st-key-${CLICKS[key]} :is(button, a)`)?.click();
    } else return;
    event.preventDefault();
  }

  // Streamlit opens a request in two steps: the first has the request's id on the page that is left, and no range.
  let forward = false;
  const leaving = event => { forward = event.destination.index > navigation.currentEntry.index; };
  function stepped(event) {
    const url = new URL(location.href);
    if (event.stepped || !url.searchParams.has("trace_id") || url.pathname.endsWith("/request")) return;
    event.stepped = true;  // by one of two headers, while a page gives way to another
    if (forward) history.forward(); else history.back();
  }
  document.addEventListener("keydown", pressed);
  window.navigation?.addEventListener("navigate", leaving);
  window.addEventListener("popstate", stepped);
  return () => {
    document.removeEventListener("keydown", pressed);
    window.navigation?.removeEventListener("navigate", leaving);
    window.removeEventListener("popstate", stepped);
  };
}
