// Every frame of the roofline was drawn beforehand: pick the one of the sliders' position.
const frameOf = ({ frames, columns }, [row, column]) => frames[row * columns + column];
