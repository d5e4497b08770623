//===- Outline.cpp - Loop nests of layers become CUDA kernels -------------===//
//
// In: layer functions as kern-lower-loops leaves them, buffers not placed yet.
// Out: `gpu.func`s in `gpu.module @cuda`, and in the layer functions
// `gpu.launch_func`, allocations and views. What stays on the host computes
// nothing on elements.
//
//   scf.parallel (%r) = (0) to (64) { row }
//
// becomes, with a warp for each row,
//
//   gpu.func @layer_0(%x: memref<64x128xf32>) kernel {
//     %r = block * 4 + thread / 32, %lane = thread % 32
//     row, its loops cut
//   }
//   gpu.launch_func @cuda::@layer_0 blocks in (16, 1, 1) threads in (128, 1, 1)
//
// A kernel takes the buffers it touches whole; it makes views of them itself.
// Code outside a parallel loop (a sum of everything) is one row.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/Distribute.h"
#include "passes/Kernels/Cuda/Passes.h"

#include "mlir/IR/IRMapping.h"
#include "mlir/Interfaces/ViewLikeInterface.h"
#include "llvm/ADT/StringMap.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CUDAOUTLINEPASS
#include "passes/Kernels/Cuda/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;

/// Threads of a block of rows that have a warp or less.
static constexpr int64_t kThreads = 128;
/// Of every buffer, in bytes: a vector.
static constexpr int64_t kAlignment = 16;
static constexpr StringLiteral kIndexError = "mgq_index_error";

gpu::GPUModuleOp kernels::getCudaModule(ModuleOp kernels) {
  if (auto found = kernels.lookupSymbol<gpu::GPUModuleOp>(kCudaModule))
    return found;
  kernels->setAttr(gpu::GPUDialect::getContainerModuleAttrName(),
                   UnitAttr::get(kernels.getContext()));
  OpBuilder builder = OpBuilder::atBlockBegin(kernels.getBody());
  auto module =
      gpu::GPUModuleOp::create(builder, kernels.getLoc(), kCudaModule);
  module->setAttr(kChecksAttr, builder.getArrayAttr({}));
  return module;
}

Value kernels::addSharedBuffer(gpu::GPUFuncOp kernel, Type element,
                               int64_t count) {
  MLIRContext *context = kernel.getContext();
  auto space =
      gpu::AddressSpaceAttr::get(context, gpu::AddressSpace::Workgroup);
  unsigned number = kernel.getNumWorkgroupAttributions();
  Value shared = kernel.addWorkgroupAttribution(
      MemRefType::get({count}, element, MemRefLayoutAttrInterface(), space),
      kernel.getLoc());
  // LLVM takes 16 for granted, whatever the type.
  kernel.setWorkgroupAttributionAttr(
      number, StringAttr::get(context, "llvm.align"),
      IntegerAttr::get(IntegerType::get(context, 64), 16));
  return shared;
}

//===----------------------------------------------------------------------===//
// What is one kernel
//===----------------------------------------------------------------------===//

/// Whether an op of a layer function is no device code.
static bool staysOnHost(Operation &op) {
  return isa<memref::AllocOp, memref::DeallocOp, memref::GetGlobalOp,
             kern::MatmulOp, kern::AttentionOp, kern::AttentionGradOp,
             gpu::LaunchFuncOp, func::ReturnOp, ViewLikeOpInterface>(op);
}

/// Whether an op may be repeated where its result is needed. A load may as long
/// as nothing writes the buffer (checkLoads).
static bool isRepeatable(Operation *op) {
  return isa<memref::GetGlobalOp, memref::LoadOp, LLVM::AddressOfOp>(op) ||
         (op->getNumRegions() == 0 && isMemoryEffectFree(op));
}

/// Whether an operand of `op` is a result of one of `ops`.
static bool uses(Operation &op, ArrayRef<Operation *> ops) {
  return llvm::any_of(op.getOperands(), [&](Value operand) {
    return llvm::is_contained(ops, operand.getDefiningOp());
  });
}

/// Cuts a layer function into runs of ops that become one kernel each: one
/// parallel loop, or sequential code up to its stores.
static SmallVector<SmallVector<Operation *>> findKernels(Block &layer) {
  SmallVector<SmallVector<Operation *>> found;
  SmallVector<Operation *> current;
  auto close = [&] {
    if (!current.empty())
      found.push_back(std::move(current));
    current.clear();
  };
  for (Operation &op : layer) {
    if (staysOnHost(op)) {
      if (!isRepeatable(&op) && !isa<memref::AllocOp>(op))
        close();
      continue;
    }
    if (isRepeatable(&op))
      continue; // cloned by who needs it
    // A nest of several sums is followed by a store for each.
    bool endsWithStore =
        !current.empty() && isa<memref::StoreOp>(current.back());
    if (isa<scf::ParallelOp>(op) || (endsWithStore && !uses(op, current)))
      close();
    current.push_back(&op);
    if (isa<scf::ParallelOp>(op))
      close();
  }
  close();
  return found;
}

//===----------------------------------------------------------------------===//
// A kernel
//===----------------------------------------------------------------------===//

namespace {
/// What a kernel takes from outside.
struct Inputs {
  llvm::SetVector<Value> passed;
  llvm::SetVector<Operation *> cloned; ///< in dominance order
  Value wrong;                         ///< something that neither works for
};

/// The kernels of a module.
class Kernels {
public:
  explicit Kernels(ModuleOp module)
      : module(module), device(getCudaModule(module)) {}

  LogicalResult outline(ArrayRef<Operation *> ops, func::FuncOp layer);
  void finish();

private:
  gpu::GPUFuncOp share(gpu::GPUFuncOp kernel);
  void copyGlobal(memref::GetGlobalOp op);
  bool writes(gpu::LaunchFuncOp launch, unsigned index);
  LogicalResult checkLoads(const Inputs &inputs, Operation *user);
  void checkIndices(gpu::GPUFuncOp kernel);
  int32_t checkOf(func::CallOp call);

  ModuleOp module;
  gpu::GPUModuleOp device;
  llvm::StringMap<gpu::GPUFuncOp> byText;
  SmallVector<Attribute> checks;
  llvm::StringMap<int32_t> checkNumbers;
};
} // namespace

static void collect(Value value, Inputs &inputs) {
  Operation *op = value.getDefiningOp();
  if (!op || isa<memref::AllocOp>(op)) {
    inputs.passed.insert(value);
    return;
  }
  if (inputs.cloned.contains(op))
    return;
  if (!isRepeatable(op)) {
    inputs.wrong = value;
    return;
  }
  for (Value operand : op->getOperands())
    collect(operand, inputs);
  inputs.cloned.insert(op);
}

static Inputs collectInputs(ArrayRef<Operation *> ops) {
  llvm::SmallPtrSet<Operation *, 8> own(ops.begin(), ops.end());
  Inputs inputs;
  auto isInside = [&](Value value) {
    Operation *op = value.getDefiningOp();
    if (!op)
      op = value.getParentBlock()->getParentOp();
    for (; op; op = op->getParentOp())
      if (own.contains(op))
        return true;
    return false;
  };
  for (Operation *op : ops)
    op->walk([&](Operation *inner) {
      for (Value operand : inner->getOperands())
        if (!isInside(operand))
          collect(operand, inputs);
    });
  return inputs;
}

/// Parallel loops inside a row are sequential ones.
static void serialize(Block &row) {
  SmallVector<scf::ParallelOp> loops;
  row.walk([&](scf::ParallelOp loop) { loops.push_back(loop); });
  for (scf::ParallelOp loop : loops) {
    OpBuilder b(loop);
    Location loc = loop.getLoc();
    scf::ForOp inner;
    for (auto [i, iv] : llvm::enumerate(loop.getInductionVars())) {
      inner = scf::ForOp::create(b, loc, loop.getLowerBound()[i],
                                 loop.getUpperBound()[i], loop.getStep()[i]);
      iv.replaceAllUsesWith(inner.getInductionVar());
      b.setInsertionPointToStart(inner.getBody());
    }
    loop.getBody()->getTerminator()->erase();
    inner.getBody()->getOperations().splice(inner.getBody()->begin(),
                                            loop.getBody()->getOperations());
    loop.erase();
  }
}

static std::string identifier(StringRef name) {
  std::string result = name.str();
  for (char &c : result)
    if (!llvm::isAlnum(c))
      c = '_';
  return result;
}

namespace {
/// Writes one kernel.
class KernelWriter {
public:
  KernelWriter(gpu::GPUFuncOp kernel, int64_t rows)
      : kernel(kernel), rows(rows), b(kernel.getContext()),
        loc(kernel.getLoc()) {}

  /// Clones `ops`; a parallel loop among them gives the rows.
  void write(ArrayRef<Operation *> ops, IRMapping &mapping);
  int64_t getBlocks() const { return blocks; }

private:
  Value index(int64_t value) {
    return arith::ConstantIndexOp::create(b, loc, value);
  }
  SmallVector<Value> delinearize(Value row, scf::ParallelOp loop);
  int64_t groupOf(Block &body, Operation *nest);
  void groupRows(Block &body, Value row, int64_t group);

  gpu::GPUFuncOp kernel;
  int64_t rows, blocks = 1;
  OpBuilder b;
  Location loc;
};
} // namespace

static SmallVector<int64_t> sizesOf(scf::ParallelOp loop) {
  SmallVector<int64_t> sizes;
  for (Value size : loop.getUpperBound())
    sizes.push_back(getConstantIntValue(size).value_or(0));
  return sizes;
}

SmallVector<Value> KernelWriter::delinearize(Value row, scf::ParallelOp loop) {
  SmallVector<int64_t> sizes = sizesOf(loop);
  SmallVector<Value> ivs(sizes.size());
  for (size_t i = sizes.size(); i-- > 1;) {
    ivs[i] = arith::RemUIOp::create(b, loc, row, index(sizes[i]));
    row = arith::DivUIOp::create(b, loc, row, index(sizes[i]));
  }
  ivs[0] = row;
  return ivs;
}

/// Rows that a thread takes: what fits into a vector, where rows are elements
/// of one dimension.
int64_t KernelWriter::groupOf(Block &body, Operation *nest) {
  auto loop = dyn_cast<scf::ParallelOp>(nest);
  bool isFlat =
      loop && loop.getNumLoops() == 1 &&
      llvm::all_of(body, [](Operation &op) { return op.getNumRegions() == 0; });
  int64_t group = vectorOf(body);
  return isFlat && rows % group == 0 ? group : 1;
}

/// Makes `body`, the code of row `row`, a loop over the rows of a group.
void KernelWriter::groupRows(Block &body, Value row, int64_t group) {
  if (group == 1)
    return;
  SmallVector<Operation *> ops;
  for (Operation &op : body.without_terminator())
    ops.push_back(&op);
  OpBuilder inside = OpBuilder::atBlockBegin(&body);
  auto constant = [&](int64_t value) -> Value {
    return arith::ConstantIndexOp::create(inside, loc, value);
  };
  auto first = arith::MulIOp::create(inside, loc, row, constant(group));
  auto loop = scf::ForOp::create(inside, loc, constant(0), constant(group),
                                 constant(1));
  inside.setInsertionPointToStart(loop.getBody());
  auto own = arith::AddIOp::create(inside, loc, first, loop.getInductionVar());
  row.replaceAllUsesExcept(own, first);
  for (Operation *op : ops)
    op->moveBefore(loop.getBody()->getTerminator());
}

void KernelWriter::write(ArrayRef<Operation *> ops, IRMapping &mapping) {
  Block &entry = kernel.getBody().front();
  b.setInsertionPointToEnd(&entry);
  // Stand for what depends on the number of lanes, which the code decides.
  Operation *row = index(0).getDefiningOp(), *lane = index(0).getDefiningOp();
  Operation *inside =
      arith::ConstantOp::create(b, loc, b.getBoolAttr(true)).getOperation();
  auto guard = scf::IfOp::create(b, loc, inside->getResult(0),
                                 /*withElseRegion=*/false);
  gpu::ReturnOp::create(b, loc);
  b.setInsertionPoint(guard.thenBlock()->getTerminator());
  for (Operation *op : ops) {
    auto loop = dyn_cast<scf::ParallelOp>(op);
    if (!loop) {
      b.clone(*op, mapping);
      continue;
    }
    mapping.map(loop.getInductionVars(), delinearize(row->getResult(0), loop));
    for (Operation &inner : loop.getBody()->without_terminator())
      b.clone(inner, mapping);
  }
  serialize(*guard.thenBlock());

  // Rows that are one element each are done in groups.
  int64_t group = groupOf(*guard.thenBlock(), ops.back());
  rows /= group;
  groupRows(*guard.thenBlock(), row->getResult(0), group);
  LanePlan plan = group > 1 ? LanePlan() : planLanes(*guard.thenBlock());
  int64_t rowsOfBlock = std::max<int64_t>(kThreads / plan.lanes, 1);
  int64_t threads = rowsOfBlock * plan.lanes;
  if (rows < rowsOfBlock) {
    threads = llvm::alignTo(rows * plan.lanes, kWarp);
    rowsOfBlock = threads / plan.lanes;
  }
  blocks = llvm::divideCeil(rows, rowsOfBlock);
  b.setInsertionPointToStart(&entry);
  Value thread = gpu::ThreadIdOp::create(b, loc, gpu::Dimension::x);
  Value block = gpu::BlockIdOp::create(b, loc, gpu::Dimension::x);
  Value first = arith::MulIOp::create(b, loc, block, index(rowsOfBlock));
  Value own = arith::DivUIOp::create(b, loc, thread, index(plan.lanes));
  Value number = arith::AddIOp::create(b, loc, first, own);
  Value laneNumber = arith::RemUIOp::create(b, loc, thread, index(plan.lanes));
  row->getResult(0).replaceAllUsesWith(number);
  lane->getResult(0).replaceAllUsesWith(laneNumber);
  if (blocks * rowsOfBlock != rows) {
    Value isRow = arith::CmpIOp::create(b, loc, arith::CmpIPredicate::ult,
                                        number, index(rows));
    inside->getResult(0).replaceAllUsesWith(isRow);
  }
  for (Operation *placeholder : {row, lane, inside})
    if (placeholder->use_empty())
      placeholder->erase();
  distributeRow(plan, laneNumber, thread, [&](Type element, int64_t count) {
    return addSharedBuffer(kernel, element, count);
  });
  kernel->setAttr(kThreadsAttr, b.getI32IntegerAttr(threads));
  kernel.setKnownBlockSizeAttr(
      b.getDenseI32ArrayAttr({static_cast<int32_t>(threads), 1, 1}));
}

//===----------------------------------------------------------------------===//
// Checks
//===----------------------------------------------------------------------===//

int32_t Kernels::checkOf(func::CallOp call) {
  auto address = call.getOperand(0).getDefiningOp<LLVM::AddressOfOp>();
  auto global = module.lookupSymbol<LLVM::GlobalOp>(address.getGlobalName());
  // Without the NUL at its end.
  StringRef text = cast<StringAttr>(global.getValueOrNull()).getValue();
  text = text.rtrim('\0');
  auto [entry, isNew] = checkNumbers.try_emplace(text, checks.size());
  if (isNew)
    checks.push_back(StringAttr::get(module.getContext(), text));
  return entry->second;
}

/// Calls of mgq_index_error become writes of the first failure into the
/// mgq_cuda_check that is the kernel's last parameter.
void Kernels::checkIndices(gpu::GPUFuncOp kernel) {
  SmallVector<func::CallOp> calls;
  kernel.walk([&](func::CallOp call) {
    if (call.getCallee() == kIndexError)
      calls.push_back(call);
  });
  if (calls.empty())
    return;
  MLIRContext *context = module.getContext();
  Type pointer = LLVM::LLVMPointerType::get(context);
  unsigned last = kernel.getFunctionType().getNumInputs();
  if (failed(kernel.insertArgument(last, pointer, {}, kernel.getLoc())))
    llvm_unreachable("a kernel takes any parameters");
  Value record = kernel.getArgument(last);
  kernel->setAttr(kReportsAttr, UnitAttr::get(context));
  for (func::CallOp call : calls) {
    OpBuilder b(call);
    Location loc = call.getLoc();
    auto word = [&](int64_t value) -> Value {
      return LLVM::ConstantOp::create(b, loc, b.getI32IntegerAttr(value));
    };
    Value pair = LLVM::AtomicCmpXchgOp::create(
        b, loc, record, word(0), word(checkOf(call) + 1),
        LLVM::AtomicOrdering::monotonic, LLVM::AtomicOrdering::monotonic);
    Value isFirst =
        LLVM::ExtractValueOp::create(b, loc, pair, ArrayRef<int64_t>{1});
    auto branch = scf::IfOp::create(b, loc, isFirst, /*withElseRegion=*/false);
    b.setInsertionPoint(branch.thenBlock()->getTerminator());
    for (int32_t field : {1, 2}) {
      Value address =
          LLVM::GEPOp::create(b, loc, pointer, b.getI64Type(), record,
                              ArrayRef<LLVM::GEPArg>{field});
      LLVM::StoreOp::create(b, loc, call.getOperand(field), address);
    }
    Operation *name = call.getOperand(0).getDefiningOp();
    call.erase();
    if (name->use_empty())
      name->erase();
  }
}

//===----------------------------------------------------------------------===//
// Outlining
//===----------------------------------------------------------------------===//

/// Constants that kernels read become device memory.
void Kernels::copyGlobal(memref::GetGlobalOp op) {
  if (device.lookupSymbol(op.getName()))
    return;
  auto global = module.lookupSymbol<memref::GlobalOp>(op.getName());
  OpBuilder b = OpBuilder::atBlockBegin(device.getBody());
  b.clone(*global);
}

/// The kernel with the same code that is there already, or this one.
gpu::GPUFuncOp Kernels::share(gpu::GPUFuncOp kernel) {
  std::string name = kernel.getName().str(), text;
  kernel.setName("kernel");
  llvm::raw_string_ostream stream(text);
  kernel->print(stream, OpPrintingFlags().useLocalScope());
  kernel.setName(name);
  auto [entry, isNew] = byText.try_emplace(text, kernel);
  if (!isNew) {
    kernel.erase();
    return entry->second;
  }
  return kernel;
}

static Value rootOf(Value buffer) {
  while (auto view = buffer.getDefiningOp<ViewLikeOpInterface>())
    buffer = view.getViewSource();
  return buffer;
}

/// Whether a launched kernel writes its parameter number `index`.
bool Kernels::writes(gpu::LaunchFuncOp launch, unsigned index) {
  auto kernel = device.lookupSymbol<gpu::GPUFuncOp>(launch.getKernelName());
  Value parameter = kernel.getArgument(index);
  bool found = false;
  kernel.walk([&](memref::StoreOp store) {
    found |= rootOf(store.getMemRef()) == parameter;
  });
  return found;
}

/// Fails if a kernel, product or attention that runs between a load and `user`,
/// which is to repeat it, writes the buffer.
LogicalResult Kernels::checkLoads(const Inputs &inputs, Operation *user) {
  for (Operation *op : inputs.cloned) {
    auto load = dyn_cast<memref::LoadOp>(op);
    if (!load)
      continue;
    Value root = rootOf(load.getMemRef());
    for (Operation *next = load; next != user; next = next->getNextNode()) {
      bool isWritten = false;
      if (auto library = dyn_cast<DestinationStyleOpInterface>(next))
        for (Value init : library.getDpsInits())
          isWritten |= rootOf(init) == root;
      if (auto launch = dyn_cast<gpu::LaunchFuncOp>(next))
        for (unsigned i = 0; i < launch.getNumKernelOperands(); ++i)
          isWritten |= launch.getKernelOperand(i) == root && writes(launch, i);
      if (isWritten)
        return load.emitOpError(
            "is of a buffer that is written before the value is used");
    }
  }
  return success();
}

LogicalResult Kernels::outline(ArrayRef<Operation *> ops, func::FuncOp layer) {
  Inputs inputs = collectInputs(ops);
  if (inputs.wrong)
    return inputs.wrong.getDefiningOp()->emitOpError(
        "is computed on the device and used by another kernel");
  if (failed(checkLoads(inputs, ops.front())))
    return failure();
  int64_t rows = 1;
  if (auto loop = dyn_cast<scf::ParallelOp>(ops.back()))
    for (int64_t size : sizesOf(loop))
      rows *= size;
  OpBuilder b = OpBuilder::atBlockEnd(device.getBody());
  Location loc = ops.front()->getLoc();
  SmallVector<Type> types(ValueRange(inputs.passed.getArrayRef()).getTypes());
  std::string stem = identifier(layer.getName()) + "_", name;
  for (unsigned number = 0; name.empty() || device.lookupSymbol(name);)
    name = stem + std::to_string(number++);
  auto kernel =
      gpu::GPUFuncOp::create(b, loc, name, b.getFunctionType(types, {}));
  kernel->setAttr(gpu::GPUDialect::getKernelFuncAttrName(), b.getUnitAttr());
  // Buffers are memory of their own; rt_cuda.h promises the alignment.
  for (unsigned i = 0; i < types.size(); ++i) {
    kernel.setArgAttr(i, LLVM::LLVMDialect::getNoAliasAttrName(),
                      b.getUnitAttr());
    kernel.setArgAttr(i, LLVM::LLVMDialect::getAlignAttrName(),
                      b.getI64IntegerAttr(kAlignment));
  }
  IRMapping mapping;
  mapping.map(inputs.passed.getArrayRef(),
              kernel.getBody().front().getArguments());
  for (Operation *op : inputs.cloned)
    if (auto global = dyn_cast<memref::GetGlobalOp>(op))
      copyGlobal(global);
  SmallVector<Operation *> all(inputs.cloned.getArrayRef());
  llvm::append_range(all, ops);
  KernelWriter writer(kernel, rows);
  writer.write(all, mapping);
  checkIndices(kernel);
  kernel = share(kernel);

  b.setInsertionPoint(ops.front());
  auto threads = kernel->getAttrOfType<IntegerAttr>(kThreadsAttr).getInt();
  auto size = [&](int64_t value) -> Value {
    return arith::ConstantIndexOp::create(b, loc, value);
  };
  Value one = size(1);
  SmallVector<Value> operands(inputs.passed.getArrayRef());
  // Stands for the address that the runtime passes.
  if (kernel->hasAttr(kReportsAttr))
    operands.push_back(LLVM::ZeroOp::create(
        b, loc, LLVM::LLVMPointerType::get(b.getContext())));
  gpu::LaunchFuncOp::create(
      b, loc,
      SymbolRefAttr::get(device.getNameAttr(),
                         {SymbolRefAttr::get(kernel.getNameAttr())}),
      gpu::KernelDim3{size(writer.getBlocks()), one, one},
      gpu::KernelDim3{size(threads), one, one}, Value(), operands);
  for (Operation *op : llvm::reverse(ops))
    op->erase();
  return success();
}

void Kernels::finish() {
  MLIRContext *context = module.getContext();
  device->setAttr(kChecksAttr, ArrayAttr::get(context, checks));
  // Names of nodes are in the table of checks now.
  for (auto global : llvm::to_vector(module.getOps<LLVM::GlobalOp>()))
    if (SymbolTable::symbolKnownUseEmpty(global, module))
      global.erase();
  if (auto error = module.lookupSymbol<func::FuncOp>(kIndexError))
    if (SymbolTable::symbolKnownUseEmpty(error, module))
      error.erase();
}

namespace {
struct CudaOutlinePass
    : mgq::kernels::impl::CudaOutlinePassBase<CudaOutlinePass> {
  void runOnOperation() override {
    Kernels kernels(getOperation());
    for (auto layer : getOperation().getOps<func::FuncOp>()) {
      if (!layer->hasAttr(nn::kLayerAttr) || layer.isExternal())
        continue;
      for (auto &ops : findKernels(layer.getBody().front()))
        if (failed(kernels.outline(ops, layer)))
          return signalPassFailure();
      // What only kernels used.
      for (Operation &op :
           llvm::make_early_inc_range(llvm::reverse(layer.getBody().front())))
        if (isRepeatable(&op) && op.use_empty() && !isa<func::ReturnOp>(op))
          op.erase();
    }
    kernels.finish();
  }
};
} // namespace
