//===- Table.cpp - The table of a twin's kernels --------------------------===//

#include "test/device/twin/Convert.h"
#include "test/device/twin/Twin.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"

using namespace llvm;
using namespace mgq::twin;

bool mgq::twin::isCollective(StringRef name) {
  static const StringSet<> names = {
#define TWIN_COLLECTIVE(leaf) "twin_nvvm_" #leaf,
#include "test/device/twin/CollectiveLeaves.inc"
#undef TWIN_COLLECTIVE
  };
  return names.contains(name);
}

namespace {
/// What a kernel and the functions that it calls need.
struct Needs {
  SmallPtrSet<const Function *, 8> seen;
  bool collective = false;
  int64_t stackBytes = 0;

  void visit(const Function &function) {
    if (!seen.insert(&function).second)
      return;
    collective |= isCollective(function.getName());
    const DataLayout &layout = function.getParent()->getDataLayout();
    for (const Instruction &inst : instructions(function)) {
      if (const auto *local = dyn_cast<AllocaInst>(&inst))
        if (std::optional<TypeSize> size = local->getAllocationSize(layout))
          stackBytes += size->getFixedValue() + 64;
      if (const auto *call = dyn_cast<CallInst>(&inst))
        if (const Function *callee = call->getCalledFunction())
          visit(*callee);
    }
  }
};

/// Builds constants of the structs in Twin.h.
class TableBuilder {
public:
  explicit TableBuilder(Module &module)
      : module(module), builder(module.getContext()) {}

  Constant *string(StringRef text) {
    return builder.CreateGlobalString(text, "", 0, &module);
  }
  Constant *int32(int64_t value) { return builder.getInt32(value); }
  Constant *int64(int64_t value) { return builder.getInt64(value); }

  Constant *array(ArrayRef<int32_t> values) {
    SmallVector<uint32_t> words(values.begin(), values.end());
    return global(ConstantDataArray::get(module.getContext(), words));
  }
  Constant *triple(const std::vector<int32_t> &values) {
    SmallVector<uint32_t> words(values.begin(), values.end());
    words.resize(3, 0);
    return ConstantDataArray::get(module.getContext(), words);
  }
  Constant *structure(ArrayRef<Constant *> fields) {
    return ConstantStruct::getAnon(module.getContext(), fields);
  }
  Constant *rows(ArrayRef<Constant *> rows) {
    if (rows.empty())
      return ConstantPointerNull::get(builder.getPtrTy());
    auto *type = ArrayType::get(rows.front()->getType(), rows.size());
    return global(ConstantArray::get(type, rows));
  }
  GlobalVariable *global(Constant *value, const Twine &name = "") {
    auto linkage = name.isTriviallyEmpty() ? GlobalValue::PrivateLinkage
                                           : GlobalValue::ExternalLinkage;
    return new GlobalVariable(module, value->getType(), /*isConstant=*/true,
                              linkage, value, name);
  }

  Constant *kernel(const Kernel &kernel);
  Constant *variable(GlobalVariable &variable);

private:
  Module &module;
  IRBuilder<> builder;

  Function *entry(Function &kernel, std::vector<int32_t> &bytes);
};
} // namespace

/// void entry(void *const *params), which calls `kernel`.
Function *TableBuilder::entry(Function &kernel, std::vector<int32_t> &bytes) {
  auto *type = FunctionType::get(builder.getVoidTy(), {builder.getPtrTy()},
                                 /*isVarArg=*/false);
  Function *result =
      Function::Create(type, GlobalValue::InternalLinkage, "entry", module);
  builder.SetInsertPoint(BasicBlock::Create(module.getContext(), "", result));
  SmallVector<Value *> arguments;
  const DataLayout &layout = module.getDataLayout();
  for (Argument &argument : kernel.args()) {
    Value *place = builder.CreateLoad(
        builder.getPtrTy(),
        builder.CreateConstGEP1_32(builder.getPtrTy(), result->getArg(0),
                                   argument.getArgNo()));
    Type *byval = argument.getParamByValType();
    Type *stored = byval ? byval : argument.getType();
    bytes.push_back(layout.getTypeAllocSize(stored));
    arguments.push_back(
        byval ? builder.CreateAddrSpaceCast(place, argument.getType())
              : builder.CreateAlignedLoad(stored, place, Align(1)));
  }
  builder.CreateCall(&kernel, arguments);
  builder.CreateRetVoid();
  return result;
}

Constant *TableBuilder::kernel(const Kernel &kernel) {
  Needs needs;
  needs.visit(*kernel.function);
  std::vector<int32_t> bytes;
  Function *function = entry(*kernel.function, bytes);
  return structure({string(kernel.name), function, int32(bytes.size()),
                    array(bytes), int64(kernel.sharedBytes),
                    triple(kernel.maxThreads), triple(kernel.exactThreads),
                    int32(needs.collective), int64(needs.stackBytes)});
}

Constant *TableBuilder::variable(GlobalVariable &variable) {
  const DataLayout &layout = module.getDataLayout();
  auto *address = ConstantExpr::getPointerBitCastOrAddrSpaceCast(
      &variable, builder.getPtrTy());
  return structure({string(variable.getName()), address,
                    int64(layout.getTypeAllocSize(variable.getValueType())),
                    int32(variable.isConstant())});
}

void mgq::twin::addTable(Module &module, const Facts &facts, bool checked) {
  TableBuilder builder(module);
  SmallVector<Constant *> kernels, variables;
  SmallVector<GlobalVariable *> own; // The table adds more.
  for (GlobalVariable &variable : module.globals())
    if (!variable.isDeclaration() && !variable.isThreadLocal() &&
        !variable.getName().starts_with("llvm."))
      own.push_back(&variable);
  for (GlobalVariable *variable : own)
    variables.push_back(builder.variable(*variable));
  for (const Kernel &kernel : facts.kernels)
    kernels.push_back(builder.kernel(kernel));
  builder.global(
      builder.structure({builder.int32(MGQ_TWIN_VERSION),
                         builder.int32(checked), builder.rows(kernels),
                         builder.int32(kernels.size()), builder.rows(variables),
                         builder.int32(variables.size())}),
      MGQ_TWIN_TABLE);
}
