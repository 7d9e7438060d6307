"""A run on S3 is queried like a local one, through fsspec and nothing else, from a server on this
machine."""

import os

import pytest

from tests.reporting.synthetic_run import make_rollouts, make_tasks
from tracerl.errors import DataError
from tracerl.models.tokenizer import character_tokenizer
from tracerl.store.catalog import answer, connect
from tracerl.store.files import rollout_table, write_rollouts, write_tasks
from tracerl.store.parquet import seal

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:botocore", "ignore::ResourceWarning"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """s3://runs/first on a local server."""
    import s3fs
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    names = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setitem(os.environ, name, value)
        root = tmp_path_factory.mktemp("run")
        write_tasks(root / "data" / "tasks" / "mixed.parquet", make_tasks())
        write_rollouts(
            root / "data" / "rollouts" / "rl@short" / "one.parquet",
            rollout_table(make_rollouts("rl@short", 1)),
        )
        seal(root / "data" / "rollouts" / "rl@short")
        (root / "data" / "checkpoints" / "base").mkdir(parents=True)
        character_tokenizer().save(root / "data" / "checkpoints" / "base")
        s3fs.S3FileSystem.clear_instance_cache()
        system = s3fs.S3FileSystem()
        system.mkdir("runs")
        system.put(str(root), "runs/first", recursive=True)
        yield "s3://runs/first"
        s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_views_macros_and_text_come_from_s3(address):
    connection = connect(address)
    rows = answer(
        connection,
        "SELECT text, decoded(response_ids) AS d, prompt FROM rollouts JOIN tasks USING (task_id) "
        "ORDER BY rollout_id",
    )
    assert rows.to_pylist() == [
        {"text": r.text, "d": r.text, "prompt": r.task.prompt}
        for r in sorted(make_rollouts("rl@short", 1), key=lambda r: r.rollout_id)
    ]


def test_files_outside_the_data_folder_are_refused_and_missing_ones_named(address):
    import s3fs

    with pytest.raises(DataError):
        answer(connect(address), "FROM read_csv('/etc/passwd')")
    with pytest.raises(DataError):
        answer(connect(address), "FROM read_text('s3://runs/first/other.txt')")
    s3fs.S3FileSystem().rm("runs/first/data/rollouts/rl@short/one.parquet")
    with pytest.raises(DataError, match=r"one\.parquet is missing"):
        connect(address)
