# SPDX-License-Identifier: Apache-2.0

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyStructlog(PythonPackage):
    """Structured logging for Python. Spack has no package of it."""

    homepage = "https://www.structlog.org/"
    pypi = "structlog/structlog-25.5.0.tar.gz"

    license("MIT OR Apache-2.0")

    version("25.5.0", sha256="098522a3bebed9153d4570c6d0288abf80a031dfdb2048d59a49e9dc2190fc98")

    depends_on("python@3.8:", type=("build", "run"))
    depends_on("py-hatchling", type="build")
    depends_on("py-hatch-vcs", type="build")
    depends_on("py-hatch-fancy-pypi-readme@22.8:", type="build")
    depends_on("py-typing-extensions", when="^python@:3.10", type=("build", "run"))
