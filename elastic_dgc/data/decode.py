"""Encoded bytes to pixels: whatever Pillow reads becomes 8-bit gray or RGB."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

from elastic_dgc.errors import DataError

Image.preinit()  # loads the usual decoders once, not in the first thread that decodes

# What Pillow and its plugins raise on damaged input. An exception beyond these is a bug and passes through.
_DAMAGE = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    NotImplementedError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

_FORMATS = {b"\x89P": ("PNG",), b"\xff\xd8": ("JPEG",)}  # by first bytes: otherwise every plugin is asked in turn


def decode(encoded: bytes | None, channels: int) -> Image.Image:
    """An image of mode 'L' (1 channel) or 'RGB' (3 channels), fully decoded. Orientation tags are not applied, as in
    torchvision; alpha is dropped; 16 bits are scaled to 8. Raises `DataError` with Pillow's reason, or where pixels are
    not finite."""
    if not encoded:
        raise DataError("it has no bytes")
    try:
        image = Image.open(io.BytesIO(encoded), formats=_FORMATS.get(encoded[:2]))
        image.load()
        return to_mode(image, channels)
    except _DAMAGE as error:
        reason = str(error).replace("<_io.BytesIO object at", "<bytes at").splitlines() or [""]
        raise DataError(_reason(error, reason[0])) from error


def to_mode(image: Image.Image, channels: int) -> Image.Image:
    """The image with the wanted number of channels, the same object if it has them."""
    wanted = "L" if channels == 1 else "RGB"
    if image.mode == wanted:
        return image
    if image.mode.startswith("I"):  # 16-bit gray; Pillow would clip it at 255
        wide = np.asarray(image).astype(np.int64)
        image = Image.fromarray(np.clip(wide >> 8, 0, 255).astype(np.uint8))
    elif image.mode in ("P", "PA"):
        # A palette with transparency goes through RGBA, otherwise Pillow warns for every such image.
        image = image.convert("RGBA").convert("RGB")
    elif image.mode == "F":
        wrong = int((~np.isfinite(np.asarray(image))).sum())
        if wrong:  # Pillow would make them 0, and nobody would ever know
            raise DataError(f"pixels are not finite (NaN or infinite): {wrong} of {image.width * image.height}")
        image = image.convert("L")
    elif image.mode not in ("1", "L", "LA", "RGB", "RGBA"):  # CMYK, YCbCr, LAB, HSV, ...
        image = image.convert("RGB")
    return image if image.mode == wanted else image.convert(wanted)


def _reason(error: BaseException, text: str) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "it is no image that Pillow knows"
    return text or type(error).__name__
