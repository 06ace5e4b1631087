// Whether a page leaves a figure too little width for its usual layout.
const NARROW = 480; // pixels: below this width of its chart

// Draws a figure, now and whenever its page becomes narrow or wide. Returns a function that ends this.
function followWidth({ el, chart, table }, draw) {
  let narrow = null;
  const look = () => {
    const before = narrow;
    narrow = chart.clientWidth > 0 && chart.clientWidth < NARROW;
    if (narrow === before) return;
    el.classList.toggle("fusion-narrow", narrow);
    // Its table may be wider than the page, and then the keyboard scrolls it.
    if (narrow) table.tabIndex = 0;
    else table.removeAttribute("tabindex");
    draw(narrow);
  };
  look();
  const resized = new ResizeObserver(look);
  resized.observe(chart);
  return () => resized.disconnect();
}
