"""`sage manifests`: reads the releases that serve, and renders them for a router."""

from app.base.errors import SettingError
from app.base.settings import Settings
from app.db.database import open_database
from app.db.tables import ReleaseState
from app.projects import store as projects
from app.releases import store as releases
from app.releases.cluster_manifests import ClusterNames, ServedRelease, render_manifests


async def served_manifests(
    settings: Settings,
    *,
    kind: str | None,
    project: str | None,
    namespace: str | None,
    pool: str | None,
    base: str | None,
    adapters: str | None,
) -> str:
    """YAML for the router `kind`. Raises SettingError without a database, NotFoundError for an unknown project,
    InvalidError for names that Kubernetes does not accept.
    """
    if not settings.database_url:
        raise SettingError("DATABASE_URL is not set: name the database of the deployment")
    names = ClusterNames(
        adapters=(adapters or str(settings.adapters_dir)).rstrip("/"),
        namespace=namespace or "",
        pool=pool or "",
        base=base or "",
    )
    async with open_database(settings.database_url) as database, database.sessions() as session:
        only = (await projects.by_name(session, project)).id if project else None
        rows = await releases.serving(session, only)
    canaries = {name: row.canary_percent or 0.0 for name, row in rows if row.state is ReleaseState.CANARY}
    served = [
        ServedRelease(name, row.model, canaries[name])
        if row.state is ReleaseState.CANARY
        else ServedRelease(name, row.model, 100 - canaries.get(name, 0.0))
        for name, row in rows
    ]
    return render_manifests(kind or "", served, names)
