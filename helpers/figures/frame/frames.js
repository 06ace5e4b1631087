// Every frame was drawn beforehand: pick the one of the sliders' positions. `layers`: positions of a third slider.
const frameOf = ({ frames, columns, layers = 1 }, [row, column, layer]) =>
  frames[(row * columns + column) * layers + layer];
