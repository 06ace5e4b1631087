// Every frame was drawn beforehand: pick the one of the slider's position.
const frameOf = ({ frames }, [operations]) => frames[operations];
