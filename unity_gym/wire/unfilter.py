"""The filters of PNG scanlines (https://www.w3.org/TR/png-3/#9Filters), compiled.

Import this module only where PNGs have to be decoded: numba takes a third of a second to import, and two seconds to
compile the functions on their first use on a machine.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from unity_gym.errors import UnityGymError

try:
    import numba

    from unity_gym.machine_code import store
except ImportError as error:
    raise UnityGymError("images of cameras need numba: install it with pip install 'unity-gym[cameras]'") from error

_SUB, _UP, _AVERAGE, _PAETH = 1, 2, 3, 4


@numba.njit
def _nearest(left, above, corner):  # type: ignore[no-untyped-def]
    """Return the neighbor that is nearest to left + above - corner; two comparisons take less time than distances."""
    low, high, bound = min(left, above), max(left, above), 3 * corner - left - above
    nearest = low if high <= bound else corner
    return high if bound <= low else nearest


@numba.njit
def _unfilter_line(kind, line, above, samples):  # type: ignore[no-untyped-def]
    """Replace the red, green and blue samples of a line by what they were before its filter.

    Each pixel depends on the one to its left, so that the three channels in one loop take less time than one by one.
    A grayscale image has the same sample in all three.

    :param kind: Filter type of the line.
    :param line: Samples of the line, uint8 (samples * width,).
    :param above: The line above without its filter.
    :return: Whether the filter type is known.
    """
    green, blue = (1, 2) if samples > 2 else (0, 0)
    left0, left1, left2 = np.int32(0), np.int32(0), np.int32(0)
    if kind == _SUB:
        for pixel in range(len(line) // samples):
            x = samples * pixel
            left0 = (line[x] + left0) & 255
            left1 = (line[x + green] + left1) & 255
            left2 = (line[x + blue] + left2) & 255
            line[x], line[x + green], line[x + blue] = left0, left1, left2
    elif kind == _UP:
        for x in range(len(line)):
            line[x] += above[x]
    elif kind == _AVERAGE:
        for pixel in range(len(line) // samples):
            x = samples * pixel
            left0 = (line[x] + ((left0 + above[x]) >> 1)) & 255
            left1 = (line[x + green] + ((left1 + above[x + green]) >> 1)) & 255
            left2 = (line[x + blue] + ((left2 + above[x + blue]) >> 1)) & 255
            line[x], line[x + green], line[x + blue] = left0, left1, left2
    elif kind == _PAETH:
        corner0, corner1, corner2 = np.int32(0), np.int32(0), np.int32(0)
        for pixel in range(len(line) // samples):
            x = samples * pixel
            up0, up1, up2 = np.int32(above[x]), np.int32(above[x + green]), np.int32(above[x + blue])
            left0 = (line[x] + _nearest(left0, up0, corner0)) & 255
            left1 = (line[x + green] + _nearest(left1, up1, corner1)) & 255
            left2 = (line[x + blue] + _nearest(left2, up2, corner2)) & 255
            line[x], line[x + green], line[x + blue] = left0, left1, left2
            corner0, corner1, corner2 = up0, up1, up2
    return kind <= _PAETH


@numba.njit
def _unfilter(scanlines, samples, output):  # type: ignore[no-untyped-def]
    """Write the red, green and blue channels of one PNG.

    :param scanlines: Inflated scanlines, a filter type before each, uint8 (height * (1 + samples * width),); they are
        overwritten.
    :param samples: Number of samples per pixel, of 8 bits each.
    :param output: Output array, uint8 (3, height, width), C-contiguous.
    :return: The first line with an unknown filter type, -1 if there is none.
    """
    _, height, width = output.shape
    length = 1 + samples * width
    green, blue = (1, 2) if samples > 2 else (0, 0)
    above = np.zeros(samples * width, np.uint8)
    for y in range(height):
        line = scanlines[y * length + 1 : (y + 1) * length]
        if not _unfilter_line(scanlines[y * length], line, above, samples):
            return y
        row0, row1, row2 = output[0, y], output[1, y], output[2, y]
        for x in range(width):
            row0[x], row1[x], row2[x] = line[samples * x], line[samples * x + green], line[samples * x + blue]
        above = line
    return -1


def _unfilter_all(scanlines, samples, images, first):  # type: ignore[no-untyped-def]
    """Write the channels of PNGs, three per PNG, into images.

    :param scanlines: Inflated scanlines of all PNGs, uint8; they are overwritten.
    :param samples: Number of samples per pixel of each PNG, int (n,).
    :param images: Output array, uint8 (m, channels, height, width), C-contiguous; filled from the first PNG's index on.
    :param first: Index of the first PNG among those of all images.
    :return: The first line with an unknown filter type, -1 if there is none.
    """
    _, channels, height, width = images.shape
    per_image = (channels + 2) // 3
    surplus = np.empty((3, height, width), np.uint8)  # for a last PNG with only one or two used channels
    start = 0
    for number in range(len(samples)):
        image, part = divmod(first + number, per_image)
        used = min(3, channels - 3 * part)
        output = images[image, 3 * part : 3 * part + 3] if used == 3 else surplus
        end = start + height * (1 + samples[number] * width)
        if samples[number] == 3:  # a constant step takes less time
            wrong = _unfilter(scanlines[start:end], 3, output)
        else:
            wrong = _unfilter(scanlines[start:end], samples[number], output)
        if wrong >= 0:
            return wrong
        if used < 3:
            images[image, 3 * part :] = surplus[:used]
        start = end
    return -1


unfilter = numba.njit(nogil=True)(_unfilter_all)
with suppress(RuntimeError):  # no writable cache folder: each process compiles again
    store(unfilter)
