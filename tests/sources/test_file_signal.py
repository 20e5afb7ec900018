"""One file whose content is watched."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from kproxy_ipt.sources.file_signal import FileWatch

_WAIT_S = 60.0


class _Signals:
    """Counts the calls of a `FileWatch`."""

    def __init__(self, path: Path, known: bytes | None = None) -> None:
        self.count = 0
        self._arrived = asyncio.Event()
        self.watch = FileWatch(str(path), self._on_change, known=known, quiet_s=0.02)

    def _on_change(self) -> None:
        self.count += 1
        self._arrived.set()

    async def next(self) -> None:
        """Wait for the next call."""
        await asyncio.wait_for(self._arrived.wait(), _WAIT_S)
        self._arrived.clear()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration file."""
    file = tmp_path / "config.conf"
    file.write_text("mode: iptables\n")
    return file


def _watch(path: Path, scenario: Callable[[_Signals], Awaitable[None]], known: bytes | None = None) -> None:
    async def run() -> None:
        signals = _Signals(path, known)
        task = asyncio.create_task(signals.watch.run())
        await asyncio.sleep(0)
        try:
            await scenario(signals)
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(run())


def test_written_and_renamed_file_is_told(config: Path) -> None:
    """Both ways of saving count, each once."""

    async def scenario(signals: _Signals) -> None:
        config.write_text("mode: nftables\n")
        await signals.next()
        (config.parent / "new").write_text("mode: iptables\n")
        (config.parent / "new").rename(config)
        await signals.next()

        assert signals.count == 2

    _watch(config, scenario)


def test_config_map_swap_is_told(tmp_path: Path) -> None:
    """The hidden link of a mounted ConfigMap turns to a new folder."""
    for number in ("1", "2"):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}/config.conf").write_text(f"number: {number}\n")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "config.conf").symlink_to("..data/config.conf")

    async def scenario(signals: _Signals) -> None:
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        await signals.next()

    _watch(tmp_path / "config.conf", scenario)


def test_same_content_and_missing_file_are_no_change(config: Path) -> None:
    """Neither saving without a change, nor removal, nor the same content put back is told."""

    async def scenario(signals: _Signals) -> None:
        text = config.read_text()
        config.write_text(text)
        config.unlink()
        config.write_text(text)
        (config.parent / "beside").write_text("no matter\n")
        config.write_text("mode: nftables\n")
        await signals.next()

        assert signals.count == 1

    _watch(config, scenario)


def test_file_that_is_being_written_is_not_told(config: Path) -> None:
    """Half a configuration is none; the whole one is told once."""

    async def scenario(signals: _Signals) -> None:
        with config.open("w") as opened:
            opened.write("mode: nft")
            opened.flush()
            (config.parent / "config.conf.bak").touch()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(signals.next(), 0.1)
            opened.write("ables\n")
        await signals.next()

        assert signals.count == 1

    _watch(config, scenario)


def test_change_before_watching_began_is_told(config: Path) -> None:
    """What is compared with is the content that is in use, not the one that is found."""
    _watch(config, lambda signals: signals.next(), known=b"mode: ipvs\n")
