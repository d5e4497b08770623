//===- PipeToyKernels.cpp - What a generated object would hold ------------===//

#include "test/runtime/PipeToyKernels.h"
#include "test/runtime/AllocationCount.h"
#include "test/runtime/PipeToy.h"
#include "test/runtime/ToyModel.h"
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

using namespace pipetoy;

template <typename T = float>
static T *arg(void *const *args, int index) {
  return static_cast<T *>(args[index]);
}

static bool isStage(const char *name, int stage) {
  const char *text = getenv(name);
  return text && atoi(text) == stage;
}

template <int stage>
static void probe(void *const *, void *) {
  static std::atomic<int> calls{0};
  if (const char *text = getenv("TOY_SLEEP"))
    usleep(atoi(text));
  if (++calls != 10)
    return;
  if (isStage("TOY_STALL", stage))
    sleep(1000);
  if (isStage("TOY_DIE", stage))
    raise(SIGKILL);
  if (isStage("TOY_INDEX", stage))
    mgq_index_error("/model/Gather_7", 9, 8);
}

namespace {
/// With TOY_COUNT: how often the process has allocated memory, at its end.
struct AtEnd {
  ~AtEnd() {
    if (getenv("TOY_COUNT"))
      dprintf(STDERR_FILENO, "allocations %ld\n", allocationCount());
  }
} atEnd;
} // namespace

mgq_kernel pipetoy::probeOf(int stage) {
  static constexpr mgq_kernel probes[] = {probe<0>, probe<1>, probe<2>,
                                          probe<3>, probe<4>, probe<5>};
  return probes[stage];
}

void pipetoy::embedForward(void *const *args, void *) {
  const float *x = arg(args, 0), *tied = arg(args, 1);
  for (int i = 0; i < batch * width; ++i)
    arg(args, 2)[i] = x[i] * tied[i % width];
}

void pipetoy::embedBackward(void *const *args, void *) {
  const float *x = arg(args, 0), *dh = arg(args, 1);
  float *dtied = arg(args, 2);
  memset(dtied, 0, width * sizeof(float));
  for (int i = 0; i < batch * width; ++i)
    dtied[i % width] += x[i] * dh[i];
}

void pipetoy::layerForward(void *const *args, void *) {
  mgq_parallel_for(
      [](void *context, int64_t row) {
        auto *list = static_cast<void *const *>(context);
        const float *h = arg(list, 0) + row * width, *w = arg(list, 1);
        for (int i = 0; i < width; ++i) {
          float sum = arg(list, 2)[i];
          for (int j = 0; j < width; ++j)
            sum += h[j] * w[i * width + j];
          arg(list, 3)[row * width + i] = std::tanh(sum);
        }
      },
      const_cast<void **>(args), batch);
}

void pipetoy::layerWeight(void *const *args, void *) {
  const float *h = arg(args, 0), *out = arg(args, 1), *dout = arg(args, 2);
  float *dw = arg(args, 3), *db = arg(args, 4);
  memset(dw, 0, width * width * sizeof(float));
  memset(db, 0, width * sizeof(float));
  for (int row = 0; row < batch; ++row)
    for (int i = 0; i < width; ++i) {
      int at = row * width + i;
      float delta = dout[at] * (1 - out[at] * out[at]);
      db[i] += delta;
      for (int j = 0; j < width; ++j)
        dw[i * width + j] += delta * h[row * width + j];
    }
}

void pipetoy::layerData(void *const *args, void *) {
  const float *out = arg(args, 0), *dout = arg(args, 1), *w = arg(args, 2);
  for (int row = 0; row < batch; ++row)
    for (int j = 0; j < width; ++j) {
      float sum = 0;
      for (int i = 0; i < width; ++i) {
        int at = row * width + i;
        sum += dout[at] * (1 - out[at] * out[at]) * w[j * width + i];
      }
      arg(args, 3)[row * width + j] = sum;
    }
}

void pipetoy::headForward(void *const *args, void *) {
  const float *h = arg(args, 0), *tied = arg(args, 1);
  const int64_t *labels = arg<int64_t>(args, 2);
  float loss = 0, right = 0;
  for (int row = 0; row < batch; ++row) {
    float *p = arg(args, 5) + row * width;
    float largest = -INFINITY, sum = 0;
    int best = 0;
    for (int i = 0; i < width; ++i) {
      p[i] = h[row * width + i] * tied[i];
      best = p[i] > p[best] ? i : best;
      largest = std::fmax(largest, p[i]);
    }
    for (int i = 0; i < width; ++i)
      sum += p[i] = std::exp(p[i] - largest);
    for (int i = 0; i < width; ++i)
      p[i] /= sum;
    if (labels[row] == toy::ignored)
      continue;
    loss -= std::log(p[labels[row]]);
    right += best == labels[row];
  }
  *arg(args, 3) = loss;
  *arg(args, 4) = right / batch;
}

void pipetoy::headBackward(void *const *args, void *) {
  const float *p = arg(args, 0), *h = arg(args, 3), *tied = arg(args, 4);
  const int64_t *labels = arg<int64_t>(args, 1);
  float seed = *arg(args, 2), *dh = arg(args, 5), *dtied = arg(args, 6);
  memset(dtied, 0, width * sizeof(float));
  for (int row = 0; row < batch; ++row)
    for (int i = 0; i < width; ++i) {
      int at = row * width + i;
      float delta =
          labels[row] == toy::ignored ? 0 : seed * (p[at] - (labels[row] == i));
      dh[at] = delta * tied[i];
      dtied[i] += delta * h[at];
    }
}

void pipetoy::countTargets(void *const *args, void *) {
  float count = 0;
  for (int row = 0; row < batch; ++row)
    count += arg<int64_t>(args, 0)[row] != toy::ignored;
  *arg(args, 1) = count;
}

void pipetoy::pack(void *const *args, void *) {
  for (int i = 0; i < width; ++i)
    for (int j = 0; j < width; ++j)
      arg(args, 1)[j * width + i] = arg(args, 0)[i * width + j];
}
