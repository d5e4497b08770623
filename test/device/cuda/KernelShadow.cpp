//===- KernelShadow.cpp - Races between threads of one kernel -------------===//

#include "test/device/cuda/KernelShadow.h"

using namespace mgq::device;

/// Whether all of `before` has happened before `now`.
static bool isOrdered(const Moment &before, const Moment &now) {
  if (before.block != now.block)
    return false;
  if (before.thread == now.thread || before.epoch != now.epoch)
    return true;
  return before.thread != KernelShadow::Many &&
         before.thread / 32 == now.thread / 32 &&
         before.warpEpoch != now.warpEpoch;
}

KernelShadow::Page &KernelShadow::find(uintptr_t number) {
  Page *&slot = recent[number % 256];
  if (slot && slot->number == number)
    return *slot;
  std::unique_ptr<Page> &page = pages[number];
  if (!page) {
    page = std::make_unique<Page>();
    page->number = number;
    page->cells.resize((size_t(1) << pageBits) / 4);
  }
  slot = page.get();
  return *page;
}

void KernelShadow::refine(Page &page) {
  std::vector<Cell> fine;
  fine.reserve(page.cells.size() * 4);
  for (const Cell &cell : page.cells)
    fine.insert(fine.end(), 4, cell);
  page.cells = std::move(fine);
  page.isFine = true;
}

Hazard KernelShadow::enterCell(Cell &cell, mgq_twin_access_kind kind,
                               const Moment &now, bool needsWrite,
                               Moment &other) {
  bool isWrite = kind != MGQ_TWIN_READ, isAtomic = kind == MGQ_TWIN_ATOMIC;
  bool written = cell.writeGeneration == generation;
  bool read = cell.readGeneration == generation;
  Hazard hazard = Hazard::None;
  if (written && !isOrdered(cell.write, now) &&
      !(isAtomic && cell.writeIsAtomic)) {
    hazard = isWrite ? Hazard::WriteAfterWrite : Hazard::ReadAfterWrite;
    other = cell.write;
  } else if (isWrite && read && !isOrdered(cell.read, now)) {
    hazard = Hazard::WriteAfterRead;
    other = cell.read;
  } else if (kind != MGQ_TWIN_WRITE && needsWrite && !written) {
    hazard = Hazard::Uninitialized;
  }
  if (isWrite) {
    cell.writeGeneration = generation;
    cell.write = now;
    cell.writeIsAtomic = isAtomic;
    return hazard;
  }
  // Readers that this one does not order are kept together with it.
  Moment reader = now;
  if (read && !isOrdered(cell.read, now)) {
    reader.thread = Many;
    if (cell.read.block != now.block)
      reader.block = Many;
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
  for (uintptr_t at = address, end = address + bytes; at < end;) {
    Page &page = find(at >> pageBits);
    uintptr_t stop = std::min(end, (at / pageBytes + 1) * pageBytes);
    if (!page.isFine && ((at | stop) & 3))
      refine(page);
    int shift = page.isFine ? 0 : 2;
    for (uintptr_t cell = at % pageBytes >> shift,
                   last = (stop - 1) % pageBytes >> shift;
         cell <= last; ++cell) {
      Hazard hazard = enterCell(page.cells[cell], kind, now, needsWrite, other);
      if (first == Hazard::None)
        first = hazard;
    }
    at = stop;
  }
  return first;
}
