#include "snug/data/png_image.h"

#include <png.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstring>

#include "snug/data/image_pixels.h"

namespace snug::data {
namespace {

/// libpng's state. Its errors jump to where setjmp was called last: to the start of one of the functions below, in
/// which nothing with a destructor lives.
struct PngDecoder {
  explicit PngDecoder(std::span<const std::uint8_t> file) : at(file.data()), left(file.size()) {}
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder() { png_destroy_read_struct(&png, &info, nullptr); }  // which takes null as well

  png_structp png = nullptr;
  png_infop info = nullptr;
  const std::uint8_t* at;
  std::size_t left;
  int passes = 1;
  std::jmp_buf jump{};
  std::array<char, 128> message{};
};

[[noreturn]] void on_error(png_structp png, png_const_charp message) {
  auto* const decoder = static_cast<PngDecoder*>(png_get_error_ptr(png));
  std::strncpy(decoder->message.data(), message, decoder->message.size() - 1);
  std::longjmp(decoder->jump, 1);
}

void on_warning(png_structp /*png*/, png_const_charp /*message*/) {}

void on_read(png_structp png, png_bytep out, std::size_t count) {
  auto* const decoder = static_cast<PngDecoder*>(png_get_io_ptr(png));
  if (count > decoder->left) png_error(png, "the file ends inside of it");
  std::memcpy(out, decoder->at, count);
  decoder->at += count;
  decoder->left -= count;
}

bool read_png_header(PngDecoder& decoder) {
  if (setjmp(decoder.jump) != 0) return false;
  decoder.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &decoder, on_error, on_warning);
  if (decoder.png == nullptr) return false;
  decoder.info = png_create_info_struct(decoder.png);
  if (decoder.info == nullptr) return false;
  png_set_read_fn(decoder.png, &decoder, on_read);
  png_read_info(decoder.png, decoder.info);
  png_set_expand(decoder.png);  // palettes, fewer than 8 bits, transparency
  png_set_strip_16(decoder.png);
  png_set_strip_alpha(decoder.png);
  png_set_gray_to_rgb(decoder.png);
  decoder.passes = png_set_interlace_handling(decoder.png);
  return true;
}

bool read_png_rows(PngDecoder& decoder, std::uint8_t* pixels, std::size_t height, std::size_t row_bytes) {
  if (setjmp(decoder.jump) != 0) return false;
  png_read_update_info(decoder.png, decoder.info);
  if (png_get_rowbytes(decoder.png, decoder.info) != row_bytes)
    png_error(decoder.png, "its rows are of another length");
  for (int pass = 0; pass < decoder.passes; ++pass) {
    for (std::size_t row = 0; row < height; ++row) png_read_row(decoder.png, pixels + row * row_bytes, nullptr);
  }
  png_read_end(decoder.png, nullptr);
  return true;
}

}  // namespace

at::Tensor decode_png(std::span<const std::uint8_t> file, std::string_view name, std::int64_t most_pixels) {
  PngDecoder decoder(file);
  if (!read_png_header(decoder)) refuse_image(name, decoder.message.data());
  const std::size_t height = png_get_image_height(decoder.png, decoder.info);
  const std::size_t width = png_get_image_width(decoder.png, decoder.info);
  at::Tensor pixels =
      room_for_pixels(static_cast<std::int64_t>(height), static_cast<std::int64_t>(width), 3, most_pixels, name);
  if (!read_png_rows(decoder, pixels.mutable_data_ptr<std::uint8_t>(), height, width * 3)) {
    refuse_image(name, decoder.message.data());
  }
  return pixels;
}

}  // namespace snug::data
