"""Contacts that stop a body at a surface and not inside it, like PhysX's speculative contacts.

MuJoCo makes contacts where surfaces are nearer than their margins, and then pushes them apart by the margins. PhysX
makes them ahead of time, too, but only removes the speed that would carry one surface into the other within the
step. `install` replaces the reference accelerations of contacts with a margin by those of PhysX:

    normal: (min(-distance / h, 10 m/s) - speed) / h, tangential: -speed / h, with the step h

MuJoCo's control callback writes them, which runs after MuJoCo has computed its own. The callback is machine code, so
that threads do not wait for each other. The offsets of the rows come from MuJoCo's description of its own structs.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import mujoco
import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from mujoco.introspect import ast_nodes, structs
from numba import types
from numba.extending import intrinsic

from unity_gym.errors import PlayerError
from unity_gym.scenes.articulated.skeleton import TICK
from unity_gym.scenes.kernels import callback

_FASTEST_RECOVERY = 10.0  # m/s at which overlapping surfaces are separated
_C_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "uint64_t": ctypes.c_uint64,
    "uintptr_t": ctypes.c_size_t,
    "mjtBool": ctypes.c_bool,
    "mjtByte": ctypes.c_uint8,
    "mjtNum": ctypes.c_double,
    "mjtSize": ctypes.c_int64,
}


def _c_type(description: Any) -> Any:
    """Return the ctypes type that has the size and alignment of one of MuJoCo's."""
    if isinstance(description, ast_nodes.PointerType):
        return ctypes.c_void_p
    if isinstance(description, ast_nodes.ArrayType):
        return _c_type(description.inner_type) * int(np.prod(description.extents))
    return _C_TYPES[description.name] if description.name in _C_TYPES else _struct(description.name)


def _struct(name: str) -> Any:
    """Return one of MuJoCo's structs as a ctypes class, whose attributes have their offsets."""
    fields = [(field.name, _c_type(field.type)) for field in structs.STRUCTS[name].fields]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_DATA, _CONTACT = _struct("mjData"), _struct("mjContact")


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_: Any, address: Any) -> Any:
    """Return an address (int64) as a pointer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


@functools.cache
def _stop_at_surfaces() -> Any:
    """Return the compiled callback that writes the reference accelerations of contacts with a margin."""
    n_contacts, contacts = _DATA.ncon.offset // 4, _DATA.contact.offset // 8
    efc_vel, efc_aref = _DATA.efc_vel.offset // 8, _DATA.efc_aref.offset // 8
    contact_bytes = ctypes.sizeof(_CONTACT)
    distance, margin = _CONTACT.dist.offset // 8, _CONTACT.includemargin.offset // 8
    dim, efc_address = _CONTACT.dim.offset // 4, _CONTACT.efc_address.offset // 4

    def stop_at_surfaces(model: Any, data: Any) -> None:  # noqa: ARG001
        count = numba.carray(data, (n_contacts + 1,), np.int32)[n_contacts]
        addresses = numba.carray(data, (max(contacts, efc_vel, efc_aref) + 1,), np.int64)
        for index in range(count):
            contact = _pointer(addresses[contacts] + index * contact_bytes)
            numbers = numba.carray(contact, (contact_bytes // 8,), np.float64)
            integers = numba.carray(contact, (contact_bytes // 4,), np.int32)
            row, dimensions = integers[efc_address], integers[dim]
            if row < 0 or numbers[margin] <= 0:
                continue
            speeds = numba.carray(_pointer(addresses[efc_vel]), (row + dimensions,), np.float64)
            references = numba.carray(_pointer(addresses[efc_aref]), (row + dimensions,), np.float64)
            references[row] = (min(-numbers[distance] / TICK, _FASTEST_RECOVERY) - speeds[row]) / TICK
            for tangential in range(row + 1, row + dimensions):
                references[tangential] = -speeds[tangential] / TICK

    return callback(stop_at_surfaces, types.void(types.voidptr, types.voidptr))


def install() -> None:
    """Make all contacts of this process that have a margin speculative; those without one are not changed.

    :raises PlayerError: If the addresses of contacts in MuJoCo differ from its own description.
    """
    if not _matches_description():
        raise PlayerError(
            f"MuJoCo {mujoco.__version__} does not keep its contacts as its module mujoco.introspect describes them: "
            "install another release of mujoco"
        )
    mujoco.set_mjcb_control(_stop_at_surfaces().ctypes)


@functools.cache
def _matches_description() -> bool:
    """Return whether the structs of a ball that touches the ground match their description."""
    spec = mujoco.MjSpec()
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], margin=0.5)
    ball = spec.worldbody.add_body(pos=[0, 0, 1.25])
    ball.add_freejoint()
    ball.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[1, 0, 0])
    model = spec.compile()
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    described = _DATA.from_address(data._address)
    if (described.ncon, described.efc_vel, described.efc_aref) != (
        data.ncon,
        data.efc_vel.ctypes.data,
        data.efc_aref.ctypes.data,
    ):
        return False
    expected, contact = data.contact[0], _CONTACT.from_address(described.contact)
    return all(
        getattr(contact, name) == getattr(expected, name) for name in ("dist", "includemargin", "dim", "efc_address")
    )
