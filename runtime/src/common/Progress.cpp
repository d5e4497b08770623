//===- Progress.cpp - What a person sees while training -------------------===//

#include "runtime/src/common/Progress.h"
#include "runtime/src/common/Trace.h"
#include <algorithm>
#include <fmt/format.h>
#include <unistd.h>

using namespace mgq::rt;

static constexpr int barWidth = 24;
static constexpr double redrawSeconds = 0.1;

/// Nobody has to read standard output: faults are ignored.
static void print(const char *text, size_t size) {
  while (size) {
    ssize_t written = write(STDOUT_FILENO, text, size);
    if (written <= 0)
      return;
    text += written;
    size -= written;
  }
}

Progress::Progress(int64_t total, int64_t done)
    : terminal(isatty(STDOUT_FILENO)), total(total), done(done),
      start(secondsNow()) {}

Progress::~Progress() {
  if (barShown)
    print("\n", 1);
}

void Progress::note(std::string_view text) {
  if (barShown)
    print("\r\033[K", 4);
  print(text.data(), text.size());
  print("\n", 1);
}

void Progress::drawBar(const StepRecord &record) {
  double now = secondsNow();
  if (now - lastDrawn < redrawSeconds && record.step != total)
    return;
  lastDrawn = now;
  barShown = true;
  double perStep = (now - start) / static_cast<double>(record.step - done);
  auto left =
      static_cast<int64_t>(perStep * static_cast<double>(total - record.step));
  char bar[barWidth + 1], text[256];
  int64_t filled = barWidth * record.step / std::max<int64_t>(total, 1);
  for (int i = 0; i < barWidth; ++i)
    bar[i] = i < filled ? '#' : '-';
  bar[barWidth] = 0;
  auto end = fmt::format_to_n(
      text, sizeof text,
      "\r[{}] step {}/{}  loss {:.4f}  {:.4g} samples/s  {}:{:02}:{:02} "
      "left\033[K",
      bar, record.step, total, record.loss,
      static_cast<double>(record.samples) / perStep, left / 3600,
      left / 60 % 60, left % 60);
  print(text, std::min(end.size, sizeof text));
}

void Progress::step(const StepRecord &record, bool logged) {
  if (terminal)
    return drawBar(record);
  if (!logged)
    return;
  char text[320];
  auto end = fmt::format_to_n(
      text, sizeof text,
      "step {}/{}  epoch {:.3f}  loss {:.6f}  grad_norm {:.4g}  lr {:.4g}  "
      "{:.4g} samples/s",
      record.step, total, record.epoch, record.loss, record.gradNorm,
      record.learningRate,
      static_cast<double>(record.samples) / record.stepSeconds);
  size_t size = std::min(end.size, sizeof text);
  if (record.lossScale > 0)
    size += fmt::format_to_n(text + size, sizeof text - size,
                             "  loss_scale {:.6g}", record.lossScale)
                .size;
  size = std::min(size, sizeof text);
  if (record.skipped)
    size += fmt::format_to_n(text + size, sizeof text - size,
                             "  skipped: {} not finite", record.skipped)
                .size;
  size = std::min(size, sizeof text - 1);
  text[size++] = '\n';
  print(text, size);
}
