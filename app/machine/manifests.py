"""`sage manifests`: reads the releases that serve, and renders them for a router."""

from app.base.errors import SettingError
from app.base.settings import Settings
from app.db.database import open_database
from app.db.tables import ReleaseState
from app.projects import store as projects
from app.releases import store as releases
from app.releases.cluster_manifests import ClusterNames, ServedRelease, render_manifests


async def served_manifests(
    settings: Settings, *, kind: str, project: str | None, adapters: str | None, **names: str
) -> str:
    """YAML for the router `kind`. `names` are those of the cluster, beside its directory of `adapters`.

    Raises SettingError without a database, NotFoundError for an unknown project, InvalidError for names that
    Kubernetes does not accept.
    """
    if not settings.database_url:
        raise SettingError("DATABASE_URL is not set: name the database of the deployment")
    cluster = ClusterNames(adapters=(adapters or str(settings.adapters_dir)).rstrip("/"), **names)
    async with open_database(settings.database_url) as database, database.sessions() as session:
        only = (await projects.by_name(session, project)).id if project else None
        rows = await releases.serving(session, only)
    canaries = {name: row.canary_percent or 0.0 for name, row in rows if row.state is ReleaseState.CANARY}
    served = []
    for name, row in rows:
        share = canaries.get(name, 0.0)
        is_canary = row.state is ReleaseState.CANARY
        served.append(ServedRelease(name, row.model, share if is_canary else 100 - share))
    return render_manifests(kind, served, cluster)
