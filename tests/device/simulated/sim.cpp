// A simulated accelerator with four devices, and a race detector.
//
// Operators run at once, on the CPU.  What is simulated is what a real accelerator leaves open: when
// they run.  Every piece of work is queued on a stream, and a vector clock says what is certain to be
// over before it begins: what the stream had before, what the stream has waited for, and what the
// thread that queues it has seen the end of.  Memory remembers who used it last.  A use that does not
// certainly come after a conflicting one is a race, whatever happened to come first in this run.

// Few and small ones: what the compiler reads takes most of its time.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/record_function.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/library.h>

#include <chrono>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

namespace at::autocast {  // from a header that takes long to read
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType);
}

namespace {

constexpr int kDevices = 4;
constexpr auto kSim = c10::DeviceType::PrivateUse1;
// The device's memory is the host's, marked: a pointer into it is never given to a CPU operator
// except by this file.
constexpr c10::DispatchKeySet kSimKeys(c10::DispatchKey::PrivateUse1);
constexpr c10::DispatchKeySet kCpuKeys(c10::DispatchKey::CPU);

// ------------------------------------------------------------------------------ vector clocks

using Line = size_t;  // a stream, by its number over all devices

// How much of each stream's work is over.
struct Clock {
  std::vector<uint64_t> at;

  uint64_t of(Line line) const {
    return line < at.size() ? at[line] : 0;
  }
  void join(const Clock& other) {
    at.resize(std::max(at.size(), other.at.size()));
    for (size_t i = 0; i < other.at.size(); ++i) {
      at[i] = std::max(at[i], other.at[i]);
    }
  }
  uint64_t tick(Line line) {
    at.resize(std::max(at.size(), line + 1));
    return ++at[line];
  }
};

// One use of memory: the bytes [first, last) by the work that is number `time` of a stream.
struct Access {
  Line line;
  uint64_t time;
  bool write;
  int64_t first, last;
  std::string what;
  bool freed = false;  // the buffer has been freed since, and its memory may be given out again

  bool before(const Clock& clock) const {
    return time <= clock.of(line);
  }
};

struct StreamState {
  std::string name;
  Clock clock;  // what is over once all work queued so far is over
  // Freed memory goes back to the stream that it was allocated in, and may be given out again there
  // at once: these uses of it may still be going on in other streams.
  std::vector<Access> freed;
  uint64_t asked = 0;  // the stream's own work when somebody last asked whether it is over
  uint64_t last_free = 0;  // the stream's own work before its last free: may use what is given out
};

// What a thread of the host has seen the end of.  Autograd hands this to its own threads, which
// therefore act for the thread that called backward.
struct Host : c10::DebugInfoBase {
  Clock clock;
};

struct Token {  // what passes between threads of the host with a lock
  Clock clock;
};

// The state below is never destroyed: memory is freed until the process has ended.
auto& mutex = *new std::mutex;  // guards all of it
auto& streams = *new std::deque<StreamState>;
auto& stream_lines = *new std::map<std::pair<int, int64_t>, Line>;
std::array<int64_t, kDevices> stream_counts{};
auto& races = *new std::vector<std::string>;
auto& reported = *new std::set<std::string>;
bool raise_races = false;
// Synchronisations that are left out, to see whether that is noticed: the one of this number.
// By kind: calls so far, and the one to drop.
auto& calls = *new std::map<std::string, std::pair<int64_t, int64_t>>;

bool dropped(const std::string& kind) {
  auto& [count, drop] = calls.try_emplace(kind, 0, -1).first->second;
  return count++ == drop;
}

thread_local int current_device = 0;
thread_local std::array<int64_t, kDevices> current_streams{};
thread_local bool in_kernel = false;

Host& host() {
  auto* info = c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO);
  if (info == nullptr) {
    auto fresh = std::make_shared<Host>();
    info = fresh.get();
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::TEST_INFO, std::move(fresh));
  }
  return static_cast<Host&>(*info);
}

Line line_of(int device, int64_t id) {
  auto [found, is_new] = stream_lines.try_emplace({device, id}, streams.size());
  if (is_new) {
    streams.emplace_back();
    streams.back().name = c10::str("stream ", id, " of sim:", device);
  }
  return found->second;
}

Line current_line(int device) {
  return line_of(device, current_streams[device]);
}

Line line_of(const c10::Stream& stream) {
  return line_of(stream.device_index(), stream.id());
}

void report(const std::string& text) {
  if (reported.insert(text).second) {
    races.push_back(text);
    TORCH_CHECK(!raise_races, text);
  }
}

// Queue one piece of work: it comes after all that this thread has seen the end of.
uint64_t queue(Line line) {
  auto& clock = streams[line].clock;
  clock.join(host().clock);
  return clock.tick(line);
}

// -------------------------------------------------------------------------------------- memory

// Who used a piece of memory, as far as it can matter to a later use.
struct History {
  std::vector<Access> accesses;

  // Report what a use conflicts with, if that is not certain to be over at `now`.
  void check(const Access& use, const Clock& now, const std::string& user) const {
    for (const auto& earlier : accesses) {
      bool conflict = (use.write || earlier.write) && use.first < earlier.last &&
          earlier.first < use.last;
      if (conflict && !earlier.before(now)) {
        report(c10::str(
            use.what, " (", user, ") ", use.write ? "writes" : "reads", " memory while ",
            earlier.what, " (", streams[earlier.line].name, ") may still ",
            earlier.write ? "write" : "read", earlier.freed ? " it, for a buffer freed since" : " it"));
      }
    }
  }

  // Keep a use, and forget those that every later conflict with would conflict with it, too.
  void keep(Access use, const Clock& now) {
    std::erase_if(accesses, [&](const Access& earlier) {
      bool inside = use.first <= earlier.first && earlier.last <= use.last;
      return inside && earlier.before(now) && (use.write || !earlier.write);
    });
    accesses.push_back(std::move(use));
  }
};

struct Block {
  char* data;
  size_t bytes;
  int device;
  Line line;  // the stream that it was allocated in
  std::set<Line> recorded;  // by record_stream
  History history;
};

auto& statistics = *new std::array<c10::CachingDeviceAllocator::DeviceStats, kDevices>;

void count(int device, size_t bytes, bool more) {
  auto& stats = statistics[device];
  for (auto* array : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                      &stats.requested_bytes}) {
    auto& stat = (*array)[0];
    more ? stat.increase(bytes) : stat.decrease(bytes);
  }
  auto& number = stats.allocation[0];
  more ? number.increase(1) : number.decrease(1);
}

size_t rounded(size_t bytes) {
  return (bytes + 511) / 512 * 512;  // as CUDA's caching allocator does
}

void free_block(void* context) {
  std::unique_ptr<Block> block(static_cast<Block*>(context));
  std::lock_guard lock(mutex);
  auto& stream = streams[block->line];
  stream.last_free = stream.clock.of(block->line);
  for (auto& use : block->history.accesses) {
    // The allocator waits for recorded streams before it gives the memory out again; and what this
    // thread has seen the end of is over for whoever is given the memory from now on.
    if (use.line != block->line && !use.freed && !block->recorded.contains(use.line) &&
        !use.before(host().clock)) {
      use.first = 0;
      use.last = std::numeric_limits<int64_t>::max();  // it may be anywhere in what is given out
      use.freed = true;
      stream.freed.push_back(use);
    }
  }
  count(block->device, rounded(block->bytes), false);
  std::free(block->data);
}

c10::DataPtr allocate_on(int device, size_t bytes) {
  std::lock_guard lock(mutex);
  auto line = current_line(device);
  auto& stream = streams[line];
  auto now = stream.clock;
  now.join(host().clock);
  std::erase_if(stream.freed, [&](const Access& use) { return use.before(now); });
  auto* data = static_cast<char*>(std::aligned_alloc(64, rounded(bytes + 1)));
  auto* block = new Block{data, bytes, device, line, {}, {stream.freed}};
  if (stream.last_free > 0) {
    block->history.accesses.push_back(
        {line, stream.last_free, true, 0, std::numeric_limits<int64_t>::max(),
         "an earlier use of the memory in the stream it was allocated in"});
  }
  count(device, rounded(bytes), true);
  return {data, block, &free_block, c10::Device(kSim, device)};
}

struct SimAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    return allocate_on(current_device, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    std::lock_guard lock(mutex);
    if (data.get_context() != nullptr && !dropped("record_stream")) {
      static_cast<Block*>(data.get_context())->recorded.insert(line_of(stream));
    }
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard lock(mutex);
    return statistics.at(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard lock(mutex);
    auto& stats = statistics.at(device);
    for (auto* array : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes,
                        &stats.requested_bytes, &stats.allocation}) {
      (*array)[0].reset_peak();
    }
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    size_t total = size_t{1} << 34;
    std::lock_guard lock(mutex);
    return {total - statistics.at(device).allocated_bytes[0].current, total};
  }
};

SimAllocator allocator;
REGISTER_ALLOCATOR(kSim, &allocator)

auto& pinned = *new std::set<const void*>;  // page-locked memory of the host

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* data = std::aligned_alloc(64, rounded(bytes + 1));
    std::lock_guard lock(mutex);
    pinned.insert(data);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  static void release(void* data) {
    std::lock_guard lock(mutex);
    pinned.erase(data);
    std::free(data);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

PinnedAllocator pinned_allocator;

// Memory of the host that asynchronous copies read or write.
struct HostMemory {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  History history;
};

auto& host_memory = *new std::unordered_map<const c10::StorageImpl*, HostMemory>;
std::atomic<size_t> host_memory_size = 0;

History* host_history(const at::Tensor& tensor, bool make) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto found = host_memory.find(storage);
  if (found != host_memory.end() && found->second.storage.expired()) {
    host_memory.erase(found);
    found = host_memory.end();
  }
  if (found == host_memory.end() && make) {
    std::erase_if(host_memory, [](auto& item) { return item.second.storage.expired(); });
    c10::weak_intrusive_ptr<c10::StorageImpl> weak(tensor.storage().getWeakStorageImpl());
    found = host_memory.emplace(storage, HostMemory{std::move(weak), {}}).first;
  }
  host_memory_size = host_memory.size();
  return found == host_memory.end() ? nullptr : &found->second.history;
}

std::pair<int64_t, int64_t> extent(const at::Tensor& tensor) {
  auto bytes = at::detail::computeStorageNbytes(
      tensor.sizes(), tensor.strides(), tensor.itemsize(), tensor.storage_offset());
  int64_t first = tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
  return {first, tensor.numel() == 0 ? first : static_cast<int64_t>(bytes)};
}

Block* block_of(const at::Tensor& tensor) {
  return static_cast<Block*>(tensor.storage().data_ptr().get_context());
}

// ------------------------------------------------------------------------------------- kernels

struct InKernel {  // what runs within is no work of the host's, and no work of autograd's
  bool before = std::exchange(in_kernel, true);
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  ~InKernel() {
    in_kernel = before;
  }
};

at::Tensor tensor_of(c10::Storage storage, c10::DispatchKeySet keys, const at::Tensor& like) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, like.dtype());
  auto* made = tensor.unsafeGetTensorImpl();
  made->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

// One operator: its tensors as the CPU's operators may see them, and its place in a stream.
class Kernel {
 public:
  explicit Kernel(std::string name) : name_(std::move(name)) {}

  enum Use { kRead, kWrite, kView };

  // Return the tensor as one of the CPU's, over the same memory.
  at::Tensor open(const at::Tensor& tensor, Use use) {
    if (!tensor.defined() || !tensor.is_privateuseone()) {
      if (tensor.defined() && tensor.dim() > 0 && name_.find("index") == std::string::npos) {
        foreign_ = true;  // (indices may be the CPU's, as they may for CUDA)
      }
      return tensor;
    }
    TORCH_CHECK(
        device_ < 0 || device_ == tensor.get_device(), name_,
        ": expected all tensors to be on the same device, but found sim:", device_, " and sim:",
        int(tensor.get_device()));
    on(tensor.get_device());
    at::Tensor cpu;
    if (use == kWrite && tensor.numel() == 0) {
      cpu = at::empty_like(tensor, at::TensorOptions().device(at::kCPU));  // may be resized
    } else {
      const auto& storage = tensor.storage();
      auto [found, is_new] = opened_.try_emplace(storage.unsafeGetStorageImpl());
      if (is_new) {
        c10::DataPtr data(storage.mutable_data(), c10::Device(c10::DeviceType::CPU));
        found->second = {
            c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data)),
            storage};
      }
      cpu = tensor_of(found->second.first, kCpuKeys, tensor);
    }
    tensors_.push_back({tensor, cpu, use});
    return cpu;
  }

  void on(int device) {
    device_ = device;
  }

  // Return what the CPU's operator returned, as the device's.
  at::Tensor close(const at::Tensor& cpu) {
    if (!cpu.defined()) {
      return cpu;
    }
    for (auto& known : tensors_) {
      if (known.cpu.is_same(cpu)) {
        return known.sim;
      }
    }
    for (auto& [_, pair] : opened_) {
      if (cpu.storage().is_alias_of(pair.first)) {
        return tensor_of(pair.second, kSimKeys, cpu);
      }
    }
    auto [found, is_new] = made_.try_emplace(cpu.storage().unsafeGetStorageImpl());
    if (is_new) {
      auto bytes = cpu.storage().nbytes();
      auto data = allocate_on(device_, bytes);
      std::memcpy(data.get(), cpu.storage().data(), bytes);
      found->second = c10::Storage(
          c10::Storage::use_byte_size_t(), bytes, std::move(data), &allocator, true);
    }
    auto sim = tensor_of(found->second, kSimKeys, cpu);
    tensors_.push_back({sim, cpu, kWrite});
    return sim;
  }

  // Queue it, and look for races.
  void run(bool host_waits = false) {
    TORCH_CHECK(!foreign_ || device_ < 0, name_,
        ": expected all tensors to be on the same device, but found sim:", device_, " and cpu");
    if (device_ < 0) {
      return;
    }
    for (auto& used : tensors_) {
      if (used.use == kWrite && used.sim.numel() == 0 && used.cpu.numel() > 0) {
        auto fresh = Kernel::fresh(used.cpu, device_);
        at::native::set_storage_cpu_(
            used.sim, fresh.storage(), 0, used.cpu.sizes(), used.cpu.strides());
      }
    }
    std::lock_guard lock(mutex);
    auto line = current_line(device_);
    auto time = queue(line);
    for (auto& used : tensors_) {
      if (used.use != kView) {
        touch(used.sim, used.use == kWrite, line, time, name_);
      }
    }
    if (host_waits) {
      dropped("host waits");
      host().clock.join(streams[line].clock);
    }
  }

  static void touch(
      const at::Tensor& sim, bool write, Line line, uint64_t time, const std::string& name) {
    auto* block = block_of(sim);
    if (block == nullptr || sim.numel() == 0) {
      return;
    }
    auto [first, last] = extent(sim);
    Access use{line, time, write, first, last, name};
    block->history.check(use, streams[line].clock, streams[line].name);
    block->history.keep(std::move(use), streams[line].clock);
  }

 private:
  static at::Tensor fresh(const at::Tensor& cpu, int device) {
    auto bytes = cpu.storage().nbytes();
    auto data = allocate_on(device, bytes);
    std::memcpy(data.get(), cpu.storage().data(), bytes);
    return tensor_of(
        c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), &allocator, true),
        kSimKeys, cpu);
  }

  struct Used {
    at::Tensor sim, cpu;
    Use use;
  };
  std::string name_;
  int device_ = -1;
  bool foreign_ = false;
  std::vector<Used> tensors_;
  std::map<const void*, std::pair<c10::Storage, c10::Storage>> opened_;
  std::map<const void*, c10::Storage> made_;
};

// A generator of the device draws what the CPU's with the same seed draws.
struct SimGenerator final : c10::GeneratorImpl {
  explicit SimGenerator(int device, at::Generator cpu = at::detail::createCPUGenerator())
      : GeneratorImpl(c10::Device(kSim, device), kSimKeys), cpu(std::move(cpu)) {}
  void set_current_seed(uint64_t seed) override {
    cpu.set_current_seed(seed);
  }
  void set_offset(uint64_t offset) override {
    cpu.set_offset(offset);
  }
  uint64_t get_offset() const override {
    return cpu.get_offset();
  }
  uint64_t current_seed() const override {
    return cpu.current_seed();
  }
  uint64_t seed() override {
    return cpu.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    cpu.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu.unsafeGetGeneratorImpl()->get_state();
  }
  SimGenerator* clone_impl() const override {
    return new SimGenerator(device_.index(), cpu.clone());
  }
  at::Generator cpu;
};

const at::Generator& default_generator(int device) {
  static auto* generators = [] {
    auto* made = new std::array<at::Generator, kDevices>();
    for (int d = 0; d < kDevices; ++d) {
      (*made)[d] = at::make_generator<SimGenerator>(d);
    }
    return made;
  }();
  return generators->at(device < 0 ? current_device : device);
}

at::Generator cpu_generator(const std::optional<at::Generator>& given, int device) {
  const auto& generator = given.has_value() && given->defined() ? *given : default_generator(device);
  TORCH_CHECK(generator.device().type() == kSim && generator.device().index() == device,
      "expected a generator of sim:", device, ", but found one of ", generator.device());
  return static_cast<SimGenerator*>(generator.unsafeGetGeneratorImpl())->cpu;
}

// Any operator, by the CPU's.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto name = c10::toString(op.operator_name());
  auto first = stack->size() - schema.arguments().size();
  Kernel kernel(name);
  std::optional<int> device;
  auto see = [&](const at::Tensor& tensor) {
    if (!device && tensor.defined() && tensor.is_privateuseone()) {
      device = tensor.get_device();
    }
  };
  for (size_t i = first; i < stack->size(); ++i) {
    const auto& value = (*stack)[i];
    if (value.isTensor()) {
      see(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        see(tensor);
      }
    } else if (value.isDevice() && value.toDevice().type() == kSim) {
      auto index = value.toDevice().index();
      device = device.value_or(index < 0 ? current_device : index);
    }
  }
  int where = device.value_or(current_device);
  kernel.on(where);

  InKernel within;
  for (size_t i = first; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    const auto& argument = schema.arguments()[i - first];
    const auto* alias = argument.alias_info();
    auto use = alias == nullptr ? Kernel::kRead
        : alias->isWrite()      ? Kernel::kWrite
                                : Kernel::kView;
    if (value.isTensor()) {
      value = kernel.open(value.toTensor(), use);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> opened;
      for (const at::Tensor& tensor : value.toTensorList()) {
        opened.push_back(kernel.open(tensor, use));
      }
      value = opened;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> opened;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        opened.push_back(tensor ? std::optional(kernel.open(*tensor, use)) : std::nullopt);
      }
      value = opened;
    } else if (value.isDevice()) {
      value = c10::Device(c10::DeviceType::CPU);
    } else if (argument.name() == "generator") {
      value = cpu_generator(value.toOptional<at::Generator>(), where);
    }
  }
  op.redispatchBoxed(kCpuKeys, stack);

  // Numbers for the host, and shapes that depend on values, make the host wait; so they do on CUDA.
  static const std::set<std::string> shaped_by_values{
      "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::repeat_interleave.Tensor"};
  bool host_waits = shaped_by_values.contains(name);
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = kernel.close(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> closed;
      for (const at::Tensor& tensor : value.toTensorList()) {
        closed.push_back(kernel.close(tensor));
      }
      value = closed;
    } else {
      host_waits = true;
    }
  }
  kernel.run(host_waits);
}

at::Tensor empty_strided(
    c10::IntArrayRef size,
    c10::IntArrayRef stride,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device> device,
    std::optional<bool>) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(
      size, stride, &allocator, kSimKeys, c10::dtype_or_default(dtype));
}

at::Tensor empty(
    c10::IntArrayRef size,
    std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout>,
    std::optional<c10::Device> device,
    std::optional<bool>,
    std::optional<c10::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(
      size, &allocator, kSimKeys, c10::dtype_or_default(dtype), format);
}

const at::Tensor& resize_(
    const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

at::Tensor opened(const at::Tensor& tensor) {
  return Kernel("copy").open(tensor, Kernel::kRead);
}

// Queue a copy.  (Tensors are not copied while the mutex is held: that may take Python's lock, for
// which a thread that waits for the mutex would have to leave it.)
void queue_copy(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  std::lock_guard lock(mutex);
  const bool sends = from.is_privateuseone(), receives = to.is_privateuseone();
  const bool blocks = !non_blocking && !(sends && receives);
  auto line = current_line((sends ? from : to).get_device());
  if (sends && receives && from.get_device() != to.get_device()) {
    // The source's stream copies; it waits for the target's, and the target's for it, as on CUDA.
    auto target = current_line(to.get_device());
    queue(target);
    streams[line].clock.join(streams[target].clock);
    auto time = queue(line);
    Kernel::touch(from, false, line, time, "copy to another device");
    Kernel::touch(to, true, line, time, "copy to another device");
    streams[target].clock.join(streams[line].clock);
    return;
  }
  auto time = queue(line);
  const auto& name = blocks ? "copy" : "asynchronous copy";
  for (const auto* tensor : {&from, &to}) {
    const bool write = tensor == &to;
    if (tensor->is_privateuseone()) {
      Kernel::touch(*tensor, write, line, time, name);
      continue;
    }
    // CUDA stages what it reads from pageable memory before the call returns.
    const bool kept = !blocks && (write || pinned.contains(tensor->storage().data()));
    if (auto* history = host_history(*tensor, kept)) {
      auto [first, last] = extent(*tensor);
      Access use{line, time, write, first, last, name};
      history->check(use, streams[line].clock, streams[line].name);
      history->keep(std::move(use), streams[line].clock);
    }
  }
  if (blocks) {
    dropped("host waits");
    host().clock.join(streams[line].clock);
  }
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  InKernel within;
  opened(to).copy_(opened(from));
  queue_copy(from, to, non_blocking);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.numel() == 0) {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, false);
}

at::Scalar item(const at::Tensor& self) {
  InKernel within;
  Kernel kernel("aten::item");
  auto value = kernel.open(self, Kernel::kRead).item();
  kernel.run(true);
  return value;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  allocator.recordStream(self.storage().data_ptr(), stream);
}

// A fused dropout, whose mask is what CPU's composite dropout multiplies by: the same bits.
std::tuple<at::Tensor, at::Tensor> native_dropout(
    const at::Tensor& input, double p, std::optional<bool> train) {
  InKernel within;
  Kernel kernel("aten::native_dropout");
  auto x = kernel.open(input, Kernel::kRead);
  auto mask = at::ones_like(x);
  if (train.value_or(true) && p > 0) {
    mask.bernoulli_(1 - p, cpu_generator({}, input.get_device())).div_(1 - p);
  }
  auto result = std::tuple(kernel.close(x.mul(mask)), kernel.close(mask));
  kernel.run();
  return result;
}

at::Tensor native_dropout_backward(const at::Tensor& gradient, const at::Tensor& mask, double) {
  return gradient.mul(mask);
}

// "Overrideable": what torch calls for a backend that it does not know.
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, int64_t groups) {
  InKernel within;
  Kernel kernel("aten::convolution");
  auto x = kernel.open(input, Kernel::kRead), w = kernel.open(weight, Kernel::kRead);
  auto b = kernel.open(bias.value_or(at::Tensor()), Kernel::kRead);
  auto y = at::convolution(
      x, w, b.defined() ? std::optional(b) : std::nullopt, stride, padding, dilation, transposed,
      output_padding, groups);
  auto result = kernel.close(y);
  kernel.run();
  return result;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
    c10::IntArrayRef stride, c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
    c10::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  InKernel within;
  Kernel kernel("aten::convolution_backward");
  auto g = kernel.open(gradient, Kernel::kRead), x = kernel.open(input, Kernel::kRead);
  auto w = kernel.open(weight, Kernel::kRead);
  std::vector<int64_t> bias_size{gradient.size(1)};
  auto [gx, gw, gb] = at::convolution_backward(
      g, x, w, bias_size, stride, padding, dilation, transposed, output_padding, groups, wanted);
  auto result = std::tuple(kernel.close(gx), kernel.close(gw), kernel.close(gb));
  kernel.run();
  return result;
}

int64_t sdp_choice(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
    double, bool, std::optional<double>, bool) {
  return 0;  // products and a softmax, each an operator of its own
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Storage", [](at::Tensor& self, at::Storage source) -> at::Tensor& {
    auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
    return at::native::set_storage_cpu_(self, source, 0, elements, {});
  });
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", item);
  m.impl("record_stream", record_stream);
  m.impl("native_dropout", native_dropout);
  m.impl("native_dropout_backward", native_dropout_backward);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("_fused_sdp_choice", sdp_choice);
  // Other backends get these in pieces with other bits, or with a warning.
  for (const auto* name : {"native_layer_norm", "native_group_norm", "mse_loss", "smooth_l1_loss"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

// ------------------------------------------------------------------------------------ autocast

// The operators that CPU's autocast treats alike, so that bits can be compared.
void cast_to(at::ScalarType type, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastPrivateUse1);
  for (size_t i = stack->size() - op.schema().arguments().size(); i < stack->size(); ++i) {
    if (auto& value = (*stack)[i]; value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (tensor.defined() && tensor.is_privateuseone() && tensor.is_floating_point() &&
          tensor.scalar_type() != at::kDouble) {
        value = tensor.to(type);
      }
    }
  }
  op.callBoxed(stack);
}

void in_lower_precision(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  cast_to(at::autocast::get_autocast_dtype(kSim), op, stack);
}

void in_float32(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  cast_to(at::kFloat, op, stack);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const auto* name : {"conv1d", "conv2d", "conv_transpose2d.input", "bmm", "mm", "baddbmm",
                           "addmm", "linear", "matmul", "scaled_dot_product_attention"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_lower_precision>());
  }
  for (const auto* name : {"mse_loss", "nll_loss", "cross_entropy_loss",
                           "binary_cross_entropy_with_logits"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_float32>());
  }
}

// -------------------------------------------------------------------------- streams and events

int checked(int device) {
  TORCH_CHECK(0 <= device && device < kDevices, "there is no device sim:", device);
  return device;
}

struct Event {
  int device;
  bool timed;
  Clock clock;
  std::chrono::steady_clock::time_point time;
  bool asked = false;
};

struct SimGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kSim;
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kSim, static_cast<c10::DeviceIndex>(
                      std::exchange(current_device, checked(device.index())))};
  }
  c10::Device getDevice() const override {
    return {kSim, static_cast<c10::DeviceIndex>(current_device)};
  }
  void setDevice(c10::Device device) const override {
    current_device = checked(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::Device with_index(c10::Device device) const {
    return device.has_index() ? device : getDevice();
  }
  c10::Stream stream(c10::Device device, int64_t id) const {
    return c10::Stream(c10::Stream::UNSAFE, with_index(device), id);
  }
  c10::Stream getStream(c10::Device device) const override {
    return stream(device, current_streams.at(with_index(device).index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    std::lock_guard lock(mutex);
    return stream(device, ++stream_counts.at(with_index(device).index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto id = std::exchange(current_streams.at(next.device_index()), next.id());
    return stream(next.device(), id);
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return kDevices;
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    return {};
  }

  void record(
      void** event, const c10::Stream& stream, const c10::DeviceIndex device,
      const c10::EventFlag flag) const override {
    TORCH_CHECK(
        device < 0 || device == stream.device_index(), "an event of sim:", int(device),
        " cannot be recorded in a stream of sim:", int(stream.device_index()));
    if (*event == nullptr) {
      *event = new Event{stream.device_index(), flag == c10::EventFlag::BACKEND_DEFAULT};
    }
    auto& recorded = *static_cast<Event*>(*event);
    std::lock_guard lock(mutex);
    if (dropped("record")) {
      return;
    }
    auto line = line_of(stream);
    queue(line);
    if (recorded.timed) {
      dropped("timed record");
    }
    recorded.clock = streams[line].clock;
    recorded.time = std::chrono::steady_clock::now();
    recorded.asked = false;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  void block(void* event, const c10::Stream& stream) const override {
    std::lock_guard lock(mutex);
    if (event != nullptr && !dropped("wait")) {
      auto line = line_of(stream);
      queue(line);
      streams[line].clock.join(static_cast<Event*>(event)->clock);
    }
  }
  // What nobody has waited for is not over yet, unless somebody asks a second time.
  bool queryEvent(void* event) const override {
    std::lock_guard lock(mutex);
    auto& recorded = *static_cast<Event*>(event);
    return over(recorded.clock, std::exchange(recorded.asked, true));
  }
  static bool over(const Clock& work, bool asked) {
    auto& seen = host().clock;
    for (Line line = 0; line < work.at.size() && !asked; ++line) {
      if (work.of(line) > seen.of(line)) {
        return false;
      }
    }
    seen.join(work);
    return true;
  }
  void synchronizeEvent(void* event) const override {
    std::lock_guard lock(mutex);
    if (event != nullptr && !dropped("synchronize")) {
      host().clock.join(static_cast<Event*>(event)->clock);
    }
  }
  bool queryStream(const c10::Stream& stream) const override {
    std::lock_guard lock(mutex);
    auto line = line_of(stream);
    auto own = streams[line].clock.of(line);
    return over(streams[line].clock, std::exchange(streams[line].asked, own) == own);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    std::lock_guard lock(mutex);
    if (!dropped("synchronize")) {
      host().clock.join(streams[line_of(stream)].clock);
    }
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    std::lock_guard lock(mutex);
    if (dropped("synchronize")) {
      return;
    }
    for (auto& [key, line] : stream_lines) {
      if (key.first == device) {
        host().clock.join(streams[line].clock);
      }
    }
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator.recordStream(data, stream);
  }
  double elapsedTime(void* first, void* last, const c10::DeviceIndex) const override {
    auto *a = static_cast<Event*>(first), *b = static_cast<Event*>(last);
    TORCH_CHECK(a != nullptr && b != nullptr, "both events must be recorded");
    TORCH_CHECK(a->timed && b->timed, "both events must be made with enable_timing=True");
    TORCH_CHECK(a->device == b->device, "the events are of two devices");
    return std::chrono::duration<double, std::milli>(b->time - a->time).count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, SimGuard)

struct SimHooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<SimGenerator>(device < 0 ? current_device : checked(device));
  }
  at::Device getDeviceFromPtr(void*) const override {
    return {kSim, static_cast<c10::DeviceIndex>(current_device)};
  }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard lock(mutex);
    return pinned.contains(data);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_allocator;
  }
  c10::DeviceIndex deviceCount() const override {
    return kDevices;
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    current_device = checked(device);
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(std::exchange(current_device, checked(device)));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto data = allocate_on(storage.device().index(), bytes);
    if (storage.data() != nullptr) {
      std::memcpy(data.get(), storage.data(), std::min(bytes, storage.nbytes()));
    }
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// ------------------------------------------------------------------------- the host's operators

// Look at a CPU operator that may use what an asynchronous copy reads or writes.
std::unique_ptr<at::ObserverContext> see_host_operator(const at::RecordFunction& function) {
  if (in_kernel || host_memory_size == 0) {
    return nullptr;
  }
  std::vector<std::pair<size_t, at::Tensor>> tensors;
  for (size_t i = 0; i < function.inputs().size(); ++i) {
    const auto& value = function.inputs()[i];
    if (value.isTensor()) {
      tensors.emplace_back(i, value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        tensors.emplace_back(i, tensor);
      }
    }
  }
  // What involves the device is seen by copy_from, with its place in a stream; what only looks at
  // shapes reads no memory; "to" copies by copy_, which is seen, too.
  static const std::set<std::string> reads_nothing{
      "aten::to", "aten::_to_copy", "aten::empty_like", "aten::zeros_like", "aten::ones_like",
      "aten::is_pinned", "aten::record_stream", "aten::detach", "aten::requires_grad_"};
  const std::string name = function.name();
  if (reads_nothing.contains(name)) {
    return nullptr;
  }
  for (auto& [_, tensor] : tensors) {
    if (tensor.defined() && tensor.is_privateuseone()) {
      return nullptr;
    }
  }
  for (auto& [index, tensor] : tensors) {
    if (!tensor.defined() || !tensor.is_cpu() || !tensor.has_storage()) {
      continue;
    }
    std::lock_guard lock(mutex);
    if (auto* history = host_history(tensor, false)) {
      auto schema = function.operator_schema();
      if (!schema || index >= schema->arguments().size()) {
        continue;  // no operator, but a name for some
      }
      const auto* alias = schema->arguments()[index].alias_info();
      // .tolist() and .numpy() go on by a pointer, after a "view" of the conjugate.
      const bool pointer = name == "aten::resolve_conj" || name == "aten::resolve_neg";
      if (alias != nullptr && !alias->isWrite() && !pointer) {
        continue;  // a view
      }
      auto [first, last] = extent(tensor);
      Access use{0, 0, alias != nullptr && alias->isWrite(), first, last, name};
      history->check(use, host().clock, "the host");
    }
  }
  return nullptr;
}

// -------------------------------------------------------------------------------------- Python

std::vector<std::string> take_races() {
  std::lock_guard lock(mutex);
  reported.clear();
  return std::exchange(races, {});
}

// Let all that was queued so far be over for everybody: another program begins.
void settle() {
  std::lock_guard lock(mutex);
  Clock all;
  for (auto& stream : streams) {
    all.join(stream.clock);
    stream.freed.clear();
    stream.last_free = 0;
  }
  for (auto& stream : streams) {
    stream.clock = all;
  }
  host().clock.join(all);
  races.clear();
  reported.clear();
  calls.clear();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  static SimHooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  at::addGlobalCallback(at::RecordFunctionCallback(see_host_operator)
                            .needsInputs(true)
                            .scopes({at::RecordScope::FUNCTION}));

  m.attr("DEVICES") = kDevices;
  m.def("take_races", take_races, "Return the races reported since the last call.");
  m.def("settle", settle, "Forget races; let all work so far be over.");
  m.def("raise_races", [](bool on) { raise_races = on; }, "Raise at the operator that races.");
  m.def(
      "drop",
      [](const std::string& kind, int64_t number) {
        std::lock_guard lock(mutex);
        calls[kind] = {0, number};
      },
      "Leave out one call: of wait, record, synchronize or record_stream, by its number from 0.");
  m.def(
      "calls",
      [](const std::string& kind) {
        std::lock_guard lock(mutex);
        return calls[kind].first;
      },
      "Return how many calls of a kind there were since drop or settle; also of \"host waits\", by an "
      "operator whose result the host needs, and of \"timed record\".");
  namespace py = pybind11;
  py::class_<Token>(m, "Token").def(py::init<>());
  m.def("publish", [](Token& token) {
    std::lock_guard lock(mutex);
    token.clock.join(host().clock);
  });
  m.def("observe", [](const Token& token) {
    std::lock_guard lock(mutex);
    host().clock.join(token.clock);
  });
  m.def("current_device", [] { return current_device; });
  m.def("set_device", [](int device) { current_device = checked(device); });
  m.def("default_generator", [](int device) {
    return py::reinterpret_steal<py::object>(THPGenerator_Wrap(default_generator(checked(device))));
  });
}
