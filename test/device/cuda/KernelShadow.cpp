//===- KernelShadow.cpp - Races between threads of one kernel -------------===//

#include "test/device/cuda/KernelShadow.h"
#include <algorithm>

using namespace mgq::device;

/// Of one thread, or of several of one warp.
static int warpOf(const Moment &moment) {
  return (moment.thread & ~Moment::ManyOfWarp) / 32;
}

/// Whether all of `before` has happened before `now`.
static bool isOrdered(const Moment &before, const Moment &now) {
  if (before.block != now.block)
    return false;
  if (before.thread == now.thread || before.epoch != now.epoch)
    return true;
  return before.thread != Moment::ManyThreads &&
         warpOf(before) == warpOf(now) && before.warpEpoch != now.warpEpoch;
}

KernelShadow::Page &KernelShadow::find(uintptr_t number) {
  Page *&slot = recent[number % 256];
  if (slot && slot->number == number)
    return *slot;
  std::unique_ptr<Page> &page = pages[number];
  if (!page) {
    page = std::make_unique<Page>();
    page->number = number;
    page->cells.resize((size_t(1) << pageBits) >> page->shift);
  }
  slot = page.get();
  return *page;
}

/// Each cell becomes several, of 2^shift bytes, that know what it knew.
void KernelShadow::refine(Page &page, int shift) {
  size_t parts = size_t(1) << (page.shift - shift);
  std::vector<Cell> fine;
  fine.reserve(page.cells.size() * parts);
  for (const Cell &cell : page.cells)
    fine.insert(fine.end(), parts, cell);
  page.cells = std::move(fine);
  page.shift = shift;
}

Hazard KernelShadow::enterCell(Cell &cell, mgq_twin_access_kind kind,
                               const Moment &now, bool needsWrite,
                               Moment &other) {
  bool isWrite = kind != MGQ_TWIN_READ;
  bool written = (cell.writeGeneration & ~isAtomic) == generation;
  bool read = cell.readGeneration == generation;
  bool bothAtomic =
      kind == MGQ_TWIN_ATOMIC && (cell.writeGeneration & isAtomic);
  Hazard hazard = Hazard::None;
  if (written && !bothAtomic && !isOrdered(cell.write, now)) {
    hazard = isWrite ? Hazard::WriteAfterWrite : Hazard::ReadAfterWrite;
    other = cell.write;
  } else if (isWrite && read && !isOrdered(cell.read, now)) {
    hazard = Hazard::WriteAfterRead;
    other = cell.read;
  } else if (kind != MGQ_TWIN_WRITE && needsWrite && !written) {
    hazard = Hazard::Uninitialized;
  }
  if (isWrite) {
    cell.writeGeneration =
        generation | (kind == MGQ_TWIN_ATOMIC ? isAtomic : 0);
    cell.write = now;
    return hazard;
  }
  // Readers that this one does not follow are kept together with it.
  Moment reader = now;
  if (read && !isOrdered(cell.read, now)) {
    bool sameWarp = cell.read.thread != Moment::ManyThreads &&
                    cell.read.block == now.block &&
                    warpOf(cell.read) == warpOf(now);
    reader.thread =
        sameWarp ? now.thread | Moment::ManyOfWarp : Moment::ManyThreads;
    if (cell.read.block != now.block)
      reader.block = Moment::ManyBlocks;
  }
  cell.readGeneration = generation;
  cell.read = reader;
  return hazard;
}

Hazard KernelShadow::enter(uintptr_t address, int64_t bytes,
                           mgq_twin_access_kind kind, const Moment &now,
                           bool needsWrite, Moment &other) {
  constexpr uintptr_t pageBytes = uintptr_t(1) << pageBits;
  Hazard first = Hazard::None;
  for (uintptr_t at = address, end = address + uintptr_t(bytes); at < end;) {
    Page &page = find(at >> pageBits);
    uintptr_t stop = std::min(end, (at / pageBytes + 1) * pageBytes);
    int shift = (at | stop) & 1 ? 0 : (at | stop) & 2 ? 1 : 2;
    if (shift < page.shift)
      refine(page, shift);
    for (uintptr_t cell = at % pageBytes >> page.shift,
                   last = (stop - 1) % pageBytes >> page.shift;
         cell <= last; ++cell) {
      Hazard hazard = enterCell(page.cells[cell], kind, now, needsWrite, other);
      if (first == Hazard::None)
        first = hazard;
    }
    at = stop;
  }
  return first;
}
