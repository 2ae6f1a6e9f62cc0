"""What the playground's templates can do beyond Django's own."""
