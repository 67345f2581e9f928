"use strict";
/* The first page: pop-up definitions, a button that copies the command, and collapsed details that are printed. */

const popover = document.getElementById("definition");
let shownFor = null;
let isPinned = false;
let timer = 0;

function show(link) {
  const entry = document.getElementById(link.hash.slice(1));
  if (!entry) return;
  clearTimeout(timer);
  popover.replaceChildren(...[...entry.children].map((part) => {
    const copy = part.cloneNode(true);
    copy.removeAttribute("id");
    return copy;
  }));
  popover.hidden = false;
  shownFor = link;
  place(link);
}

/* Below the name, or above it where the window ends; never outside the window. */
function place(link) {
  const name = link.getBoundingClientRect();
  const box = popover.getBoundingClientRect();
  const width = document.documentElement.clientWidth;
  const left = Math.max(8, Math.min(name.left, width - box.width - 8));
  const isBelow = name.bottom + box.height + 8 < window.innerHeight || name.top < box.height + 8;
  const top = isBelow ? name.bottom + 6 : name.top - box.height - 6;
  popover.style.left = `${left + window.scrollX}px`;
  popover.style.top = `${top + window.scrollY}px`;
}

function hide() {
  clearTimeout(timer);
  popover.hidden = true;
  shownFor = null;
  isPinned = false;
}

/* A pause, so that the pointer can move from the name to its definition. */
function hideSoon() {
  clearTimeout(timer);
  if (!isPinned) timer = setTimeout(hide, 200);
}

const definedName = (event) => (event.target instanceof Element ? event.target.closest("a.defined") : null);

document.addEventListener("pointerover", (event) => {
  const link = definedName(event);
  if (link && !isPinned && event.pointerType !== "touch") show(link);
  else if (popover.contains(event.target)) clearTimeout(timer);
});
document.addEventListener("pointerout", (event) => {
  if (definedName(event) || popover.contains(event.target)) hideSoon();
});
document.addEventListener("focusin", (event) => {
  const link = definedName(event);
  if (link) show(link);
});
document.addEventListener("focusout", (event) => {
  if (definedName(event)) hideSoon();
});
document.addEventListener("click", (event) => {
  const link = definedName(event);
  if (link) {
    event.preventDefault();
    if (isPinned && shownFor === link) return hide();
    show(link);
    isPinned = true;
  } else if (!popover.contains(event.target)) hide();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hide();
});

/* A link to a target inside closed details opens them. */
function openTarget() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  let isMoved = false;
  for (let at = target; at; at = at.parentElement) {
    if (at.tagName === "DETAILS" && !at.open) isMoved = at.open = true;
  }
  if (isMoved) target.scrollIntoView();
}
window.addEventListener("hashchange", openTarget);
openTarget();

const button = document.getElementById("copy");
if (button) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const command = document.getElementById(button.dataset.copies);
    let isCopied = false;
    try {
      await navigator.clipboard.writeText(command.textContent);
      isCopied = true;
    } catch {
      getSelection().selectAllChildren(command);
    }
    document.getElementById("copied").textContent = isCopied ? "Copied." : "Selected: copy it with Ctrl+C or Cmd+C.";
  });
}

/* Collapsed details are printed, too. */
const folded = [];
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    details.open = true;
    folded.push(details);
  }
});
window.addEventListener("afterprint", () => {
  for (const details of folded.splice(0)) details.open = false;
});
