"""The quantization workflow: clean and fuse, calibrate, choose encodings, insert QDQ; one printable pipeline."""
