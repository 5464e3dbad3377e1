# SPDX-License-Identifier: Apache-2.0

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyKoalaAdapter(PythonPackage):
    """Run one parallel job on several unmodified Slurm, Grid Engine and PBS clusters at once."""

    # Built from a checkout:
    #     spack repo add packaging/spack/spack_repo/koala
    #     spack dev-build --source-path . py-koala-adapter@0.2.0

    license("Apache-2.0")

    version("0.2.0")

    variant("dask", default=False, description="Clusters for Dask")
    variant("figures", default=False, description="Figures of simulations")
    variant("web", default=False, description="Pages for a browser")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")

    with default_args(type=("build", "run")):
        depends_on("py-anyio@4.12:")
        depends_on("py-click@8.2.1:")
        depends_on("py-cryptography@41:")
        depends_on("py-drmaa@0.7.9:")
        depends_on("py-lxml@5:")
        depends_on("py-prometheus-client@0.20:")
        depends_on("py-pydantic@2.8:")
        depends_on("py-rich@14.3:")
        depends_on("py-structlog@23.1:")
        depends_on("py-distributed@2025.1:", when="+dask")
        depends_on("py-matplotlib@3.11:", when="+figures")
        depends_on("py-starlette@0.46:", when="+web")
        depends_on("py-uvicorn@0.32:", when="+web")

    import_modules = ["koala_adapter", "koala_slurm", "koala_sge", "koala_pbs"]
