//===- ToyModel.cpp - A hand-written program ------------------------------===//
//
// Variables of the environment bend it for tests: TOY_SLEEP (microseconds each
// forward takes), TOY_NAN (number of the backward call, from 1, that yields
// NaN), TOY_INDEX (an index fault in forward), TOY_ALLOCATIONS (print how often
// memory was allocated between the second step and the last forward call),
// TOY_SEEDS (print each backward's seed), TOY_RENAME (other parameter name),
// TOY_MEAN (the loss is a mean, not a sum). With TOY_STAGES the program is a
// pipeline (PipeToy.h).
//
//===----------------------------------------------------------------------===//

#include "test/runtime/ToyModel.h"
#include "test/runtime/AllocationCount.h"
#include "test/runtime/PipeToy.h"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

using namespace toy;

namespace {
/// The arena, each part 64-byte aligned.
struct Layout {
  alignas(64) float embed[3][words * classes]; // Value, momentum, variance.
  alignas(64) float head[3][pixels * classes];
  alignas(64) float bias[3][classes];
  alignas(64) float embedGrad[words * classes], headGrad[pixels * classes];
  alignas(64) float biasGrad[2][classes]; // One per use.
  alignas(64) int64_t ids[batch];
  alignas(64) float image[batch * pixels];
  alignas(64) int64_t labels[batch];
  alignas(64) float probabilities[batch * classes];
  alignas(64) float embedDelta[words * classes], headDelta[pixels * classes];
  alignas(64) float biasDelta[2][classes];
  alignas(64) float loss, count, seed, accuracy;
  alignas(64) float scratch[16];
};
} // namespace

static const char *environment(const char *name) { return getenv(name); }

static int forwardCalls = 0, backwardCalls = 0;
static long allocationsAtStart = 0;

/// Prints allocations since the first forward call of the second step.
static void noteAllocations() {
  if (++forwardCalls == microBatches + 1)
    allocationsAtStart = allocationCount();
  if (forwardCalls <= microBatches || !environment("TOY_ALLOCATIONS"))
    return;
  char text[64]; // dprintf would allocate.
  int size = snprintf(text, sizeof text, "allocations %ld\n",
                      allocationCount() - allocationsAtStart);
  if (write(STDERR_FILENO, text, size) != size)
    abort();
}

static void forwardRow(void *const *args, int64_t b) {
  auto *embed = static_cast<float *>(args[0]);
  auto *head = static_cast<float *>(args[1]);
  auto *bias = static_cast<float *>(args[2]);
  auto *frozen = static_cast<float *>(args[3]);
  auto *ids = static_cast<int64_t *>(args[4]);
  auto *image = static_cast<float *>(args[5]) + b * pixels;
  auto *row = static_cast<float *>(args[7]) + b * classes;
  float largest = -INFINITY, sum = 0;
  for (int c = 0; c < classes; ++c) {
    row[c] = embed[ids[b] * classes + c] + bias[c] + bias[c] + frozen[c];
    for (int k = 0; k < pixels; ++k)
      row[c] += image[k] * head[k * classes + c];
    largest = std::fmax(largest, row[c]);
  }
  for (int c = 0; c < classes; ++c)
    sum += row[c] = std::exp(row[c] - largest);
  for (int c = 0; c < classes; ++c)
    row[c] /= sum;
}

/// (embed, head, bias, frozen, ids, image, labels, probabilities, loss, count,
/// accuracy)
static void forward(void *const *args, void *) {
  if (const char *text = environment("TOY_SLEEP"))
    usleep(atoi(text));
  noteAllocations();
  mgq_parallel_for(
      [](void *context, int64_t b) {
        forwardRow(static_cast<void *const *>(context), b);
      },
      const_cast<void **>(args), batch);
  auto *labels = static_cast<int64_t *>(args[6]);
  auto *rows = static_cast<float *>(args[7]);
  float loss = 0, count = 0, right = 0;
  for (int b = 0; b < batch; ++b) {
    if (labels[b] == ignored)
      continue;
    const float *row = rows + b * classes;
    loss -= std::log(row[labels[b]]);
    count += 1;
    int best = 0;
    for (int c = 1; c < classes; ++c)
      best = row[c] > row[best] ? c : best;
    right += best == labels[b];
  }
  if (environment("TOY_INDEX"))
    mgq_index_error("/model/Gather_3", 7, 5);
  *static_cast<float *>(args[8]) =
      environment("TOY_MEAN") ? loss / count : loss;
  *static_cast<float *>(args[9]) = count;
  *static_cast<float *>(args[10]) = right / batch;
}

/// (ids, image, labels, probabilities, seed, embed, head, bias, bias)
static void backward(void *const *args, void *scratch) {
  auto *ids = static_cast<int64_t *>(args[0]);
  auto *image = static_cast<float *>(args[1]);
  auto *labels = static_cast<int64_t *>(args[2]);
  auto *rows = static_cast<float *>(args[3]);
  float seed = *static_cast<float *>(args[4]);
  if (environment("TOY_SEEDS"))
    dprintf(STDERR_FILENO, "seed %.9g\n", static_cast<double>(seed));
  auto *embed = static_cast<float *>(args[5]);
  auto *head = static_cast<float *>(args[6]);
  auto *bias = static_cast<float *>(args[7]);
  auto *again = static_cast<float *>(args[8]);
  auto *delta = static_cast<float *>(scratch); // [classes]
  memset(embed, 0, words * classes * sizeof(float));
  memset(head, 0, pixels * classes * sizeof(float));
  memset(bias, 0, classes * sizeof(float));
  for (int b = 0; b < batch; ++b) {
    if (labels[b] == ignored)
      continue;
    for (int c = 0; c < classes; ++c) {
      delta[c] = seed * (rows[b * classes + c] - (labels[b] == c));
      embed[ids[b] * classes + c] += delta[c];
      bias[c] += delta[c];
      for (int k = 0; k < pixels; ++k)
        head[k * classes + c] += image[b * pixels + k] * delta[c];
    }
  }
  memcpy(again, bias, classes * sizeof(float));
  const char *nan = environment("TOY_NAN");
  if (nan && atoi(nan) == ++backwardCalls)
    head[5] = NAN;
}

/// (labels, count)
static void countLabels(void *const *args, void *) {
  auto *labels = static_cast<int64_t *>(args[0]);
  float count = 0;
  for (int b = 0; b < batch; ++b)
    count += labels[b] != ignored;
  *static_cast<float *>(args[1]) = count;
}

void toy::adamw(float *parameter, const float *gradient, float *momentum,
                float *variance, const float *s, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    float g = gradient[i] * s[0];
    float p = parameter[i] * s[1];
    momentum[i] += s[3] * (g - momentum[i]);
    variance[i] = s[4] * variance[i] + s[5] * g * g;
    parameter[i] =
        p - s[6] * momentum[i] / (std::sqrt(variance[i]) * s[7] + s[8]);
  }
}

double toy::squaredNorm(const float *values, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

void toy::accumulate(float *sum, const float *values, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    sum[i] += values[i];
}

//===--- The tables -------------------------------------------------------===//

#define AT(FIELD) static_cast<int64_t>(__builtin_offsetof(Layout, FIELD))
#define REF(FIELD) {MGQ_SPACE_ARENA, 0, AT(FIELD)}

static const int64_t embedShape[] = {words, classes};
static const int64_t headShape[] = {pixels, classes};
static const int64_t biasShape[] = {classes};
static const int64_t idsShape[] = {batch};
static const int64_t imageShape[] = {batch, 3, 2, 2};
static const int64_t swapped[] = {1, 0};

static const mgq_param params[] = {
    {"embed.weight",
     {MGQ_F32, 2, embedShape, 80},
     "toy.weights",
     embedAt,
     1,
     0,
     nullptr},
    {"head.weight",
     {MGQ_F32, 2, headShape, 192},
     "toy.weights",
     headAt,
     1,
     0,
     swapped},
    {"bias", {MGQ_BF16, 1, biasShape, 8}, "toy.weights", biasAt, 1, 0, nullptr},
    {"frozen",
     {MGQ_F32, 1, biasShape, 16},
     "toy.weights",
     frozenAt,
     0,
     0,
     nullptr}};

static const mgq_place places[] = {
    {0, -1, AT(embed[0]), AT(embedGrad), AT(embed[1]), AT(embed[2])},
    {1, -1, AT(head[0]), AT(headGrad), AT(head[1]), AT(head[2])},
    {2, -1, AT(bias[0]), AT(biasGrad[0]), AT(bias[1]), AT(bias[2])},
    {3, -1, -1, -1, -1, -1}};

static const mgq_use uses[] = {{0, AT(embedGrad)},
                               {1, AT(headGrad)},
                               {2, AT(biasGrad[0])},
                               {2, AT(biasGrad[1])}};

static const mgq_file files[] = {{"toy.weights", -1, 0, 0}};

static const mgq_input inputs[] = {
    {"ids", {MGQ_I64, 1, idsShape, 16}, words, 0, 0},
    {"pixels", {MGQ_F32, 4, imageShape, 96}, 0, 0, 0},
    {"labels", {MGQ_I64, 1, idsShape, 16}, classes, 1, ignored}};

static const mgq_output outputs[] = {{"loss", {MGQ_F32, 0, nullptr, 4}},
                                     {"accuracy", {MGQ_F32, 0, nullptr, 4}}};
static const mgq_output_place outputPlaces[] = {{0, REF(loss)},
                                                {1, REF(accuracy)}};

static const mgq_grad grads[] = {{0, 0, 0, REF(embedDelta), AT(embedGrad)},
                                 {1, 0, 0, REF(headDelta), AT(headGrad)},
                                 {2, 0, 0, REF(biasDelta[0]), AT(biasGrad[0])},
                                 {2, 0, 0, REF(biasDelta[1]), AT(biasGrad[1])}};

static const mgq_layer layers[] = {{"classifier", 100, 200, 0}};

static const mgq_ref forwardArgs[] = {
    REF(embed[0]), REF(head[0]), REF(bias[0]), {MGQ_SPACE_WEIGHT, 3, 0},
    REF(ids),      REF(image),   REF(labels),  REF(probabilities),
    REF(loss),     REF(count),   REF(accuracy)};
static const mgq_ref backwardArgs[] = {
    REF(ids),           REF(image),        REF(labels),
    REF(probabilities), REF(seed),         REF(embedDelta),
    REF(headDelta),     REF(biasDelta[0]), REF(biasDelta[1])};
static const mgq_ref countArgs[] = {REF(labels), REF(count)};

static const mgq_call forwardCall = {
    forward, "classifier.forward", forwardArgs, 11, 0, 0, 0, nullptr};
static const mgq_call backwardCall = {
    backward, "classifier.backward", backwardArgs, 9,
    0,        AT(scratch),           64,           nullptr};
static const mgq_call countCall = {countLabels, "count", countArgs, 2,
                                   -1,          0,       0,         nullptr};

static const mgq_load loads[] = {
    {0, REF(ids)}, {1, REF(image)}, {2, REF(labels)}};

static const mgq_chunk chunk = {0,
                                1,
                                0,
                                0,
                                {loads, 3, &forwardCall, 1},
                                {nullptr, 0, &backwardCall, 1},
                                {nullptr, 0, nullptr, 0},
                                {loads, 3, &forwardCall, 1},
                                grads,
                                4,
                                nullptr,
                                0,
                                nullptr,
                                0};

static mgq_op op(int32_t kind, int32_t microBatch) {
  mgq_op made = {};
  made.kind = kind;
  made.chunk = microBatch < 0 ? -1 : 0;
  made.micro_batch = microBatch;
  made.slot = made.peer = made.tag = -1;
  return made;
}

static const mgq_op ops[] = {op(MGQ_OP_FORWARD, 0),  op(MGQ_OP_BACKWARD, 0),
                             op(MGQ_OP_FORWARD, 1),  op(MGQ_OP_BACKWARD, 1),
                             op(MGQ_OP_COMBINE, -1), op(MGQ_OP_OPTIMIZER, -1)};
static const mgq_op evaluateOps[] = {op(MGQ_OP_EVALUATE, 0)};

static const mgq_pair metadata[] = {{"mgq.length", "24"}, {"producer", "toy"}};

static mgq_rank makeRank(bool lossIsSum) {
  mgq_rank r = {};
  r.places = places;
  r.place_count = 4;
  r.uses = uses;
  r.use_count = 4;
  r.chunks = &chunk;
  r.chunk_count = 1;
  if (lossIsSum)
    r.count = {loads + 2, 1, &countCall, 1};
  r.count_place = REF(count);
  r.loss = r.evaluate_loss = REF(loss);
  r.seed = REF(seed);
  r.outputs = outputPlaces;
  r.output_count = 2;
  r.ops = ops;
  r.op_count = 6;
  r.evaluate_ops = evaluateOps;
  r.evaluate_op_count = 1;
  r.arena_bytes = sizeof(Layout);
  r.memory.activations = sizeof(Layout);
  r.step_flops = 600;
  return r;
}

/// The table as constant data would be, apart from what the environment bends.
static mgq_program makeProgram() {
  mgq_program p = {};
  p.abi_version = MGQ_ABI_VERSION;
  p.compiler_version = "toy 1";
  p.fingerprint = environment("TOY_FINGERPRINT") ? "other" : "toy-fingerprint";
  p.plan_hash = "toy-plan";
  p.model_path = "/nonexistent/toy.onnx";
  p.metadata = metadata;
  p.metadata_count = 2;
  p.params = params;
  p.param_count = 4;
  if (environment("TOY_RENAME")) {
    static mgq_param renamed[4];
    memcpy(renamed, params, sizeof params);
    renamed[0].name = "token.weight";
    p.params = renamed;
  }
  p.files = files;
  p.file_count = 1;
  p.inputs = inputs;
  p.input_count = 3;
  p.outputs = outputs;
  p.output_count = 2;
  p.layers = layers;
  p.layer_count = 1;
  p.schedule = "gpipe";
  p.stages = p.replicas = 1;
  p.micro_batches = microBatches;
  p.micro_batch_size = batch;
  p.loss_is_sum = !environment("TOY_MEAN");
  p.predicted_step_seconds = p.predicted_bubble = -1;
  static const mgq_rank rank = makeRank(p.loss_is_sum);
  p.ranks = &rank;
  p.adamw = adamw;
  p.sq_norm = squaredNorm;
  p.accumulate = accumulate;
  return p;
}

const mgq_program mgq_program_table =
    environment("TOY_STAGES")
        ? pipetoy::makeProgram(pipetoy::planOfEnvironment())
        : makeProgram();
