"""Compile `unity.proto` into the checked-in descriptor set: ``python -m unity_gym.wire.generate`` (needs grpcio-tools).

A descriptor set, unlike a generated module, requires no version of the protobuf runtime. So the same file loads with
protobuf 5, 6 and 7.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
DESCRIPTOR_SET = FOLDER / "unity.binpb"


def compile_descriptor_set() -> bytes:
    """Return the serialized `FileDescriptorSet` of `unity.proto`.

    :raises RuntimeError: If protoc rejects the file.
    """
    from grpc_tools import protoc  # a development tool, not needed to run

    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "unity.binpb"
        arguments = ["protoc", f"--proto_path={FOLDER}", f"--descriptor_set_out={output}", "unity.proto"]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"protoc could not compile {FOLDER / 'unity.proto'}")
        return output.read_bytes()


if __name__ == "__main__":
    DESCRIPTOR_SET.write_bytes(compile_descriptor_set())
    print(f"wrote {DESCRIPTOR_SET}")
