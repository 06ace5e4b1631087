// Marking by hand: one answer at a time; each mark is sent as soon as it is given.
const token = new URLSearchParams(location.search).get("token");
const all = [...document.querySelectorAll("section")];
let at = 0;
const field = (name) => all[at].querySelector(`[name=${name}]`);
const show = (to) => {
  at = Math.max(0, Math.min(all.length - 1, to));
  all.forEach((each, number) => (each.hidden = number !== at));
  document.getElementById("place").textContent = `${at + 1} of ${all.length}`;
  scrollTo(0, 0);
};
const save = async (then) => {
  const { student, exercise } = all[at].dataset;
  const said = all[at].querySelector("[role=status]");
  const mark = { student, exercise, points: field("points").value || "0", comment: field("comment").value };
  try {
    const answer = await fetch(`mark?token=${token}`, { method: "POST", body: JSON.stringify(mark) });
    const text = await answer.text();
    said.textContent = answer.ok ? `Saved: ${text}` : `Not saved: ${text}`;
    if (!answer.ok) return;
  } catch {
    said.textContent = "Not saved: `fusion mark` no longer answers. Start it again; what is typed here stays.";
    return;
  }
  field("points").value = field("comment").value = "";
  then();
};
document.addEventListener("submit", (event) => {
  event.preventDefault();
  save(() => show(at + 1));
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return document.activeElement.blur();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return save(() => show(at + 1));
  if (event.target.matches("input, textarea") || event.ctrlKey || event.altKey || event.metaKey) return;
  const keys = {
    j: () => show(at + 1),
    k: () => show(at - 1),
    p: () => field("points").focus(),
    c: () => field("comment").focus(),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
show(0);
